/* Events: places in a stream.
 */
#ifndef MPIXLA_TEST_FAKE_EVENT_H
#define MPIXLA_TEST_FAKE_EVENT_H

#include "test/gpu/fake_stream.h"

/* An event is asked this often before it makes the stream run, which a real one would do meanwhile. So one can see that
 * it is not there yet, and who asks until it is does not ask for ever. */
enum { FAKE_EVENT_PATIENCE = 64 };

/* Each returns 0, or the driver's code. */
int fake_event_create(driver_event *event, int device);
int fake_event_record(driver_event event, fake_stream *stream);
int fake_event_query(driver_event event);
int fake_event_synchronize(driver_event event);
int fake_event_destroy(driver_event event);

/* How many events there are. */
FAKE_API int64_t fake_events_live(void);

#endif
