#include "mpi/outbox.h"

#include <stdlib.h>

#include "mpi/dtype.h"
#include "xla/xla_ffi.h"

outbox_message *outbox_message_new(int64_t bytes) {
    outbox_message *m = calloc(1, sizeof *m + (size_t)bytes);
    if (m) m->bytes = bytes;
    return m;
}

int outbox_is_sending(outbox *o) {
    for (outbox_message **at = &o->first; *at;) {
        outbox_message *m = *at;
        if (!mpi_request_is_done(&m->request)) {
            at = &m->next;
            continue;
        }
        *at = m->next;
        free(m);
    }
    return o->first != NULL;
}

int outbox_send(outbox *o, outbox_message *m, int to, int tag, mpixla_handle comm) {
    (void)outbox_is_sending(o);
    const int code = mpi_get()->small->isend(m->data, m->bytes, dtype_find(FFI_U8)->handle, to, tag, comm, &m->request);
    if (code != 0) {
        free(m);
        return code;
    }
    m->next = o->first;
    o->first = m;
    return 0;
}
