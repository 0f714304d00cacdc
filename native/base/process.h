/* Identifies processes of this host, and reads their state from the kernel. */
#ifndef MPIXLA_NATIVE_PROCESS_H
#define MPIXLA_NATIVE_PROCESS_H

#include <stdint.h>

typedef enum process_state {
    PROCESS_THERE,
    PROCESS_STOPPED, /* by a signal or a debugger */
    PROCESS_GONE     /* it has ended; a zombie has, too */
} process_state;

/* Identifies a process to other processes of the host. The kernel reuses process numbers, so the start time is part of
 * the identity. */
typedef struct process_id {
    int64_t number;  /* getpid() */
    int64_t started; /* clock ticks from the start of the system; 0: unknown, as on macOS */
    int64_t space;   /* in which the two mean it: a container has its own; 0: unknown, or there is only one */
} process_id;

/* Returns the identity of this process. Reads /proc on Linux. */
process_id process_self(void);

/* Returns the start time, as in process_id, of the process with this number in the caller's namespace; 0: unknown, or
 * the process is gone. */
int64_t process_started(int64_t number);

/* Returns the state of a process. PROCESS_GONE is certain: the number is not in use, is a zombie's, or belongs to a
 * process that started at another time. A process of another space counts as PROCESS_THERE, as does one that cannot be
 * looked at. */
process_state process_state_read(const process_id *id);

/* process_percent returns the processor time that this process has used since an earlier process_measure, in per cent
 * of one processor; -1 without such a measurement. The interval is one to two seconds if process_measure is called
 * often. One thread calls both. */
int64_t process_percent(void);
void process_measure(void);

#endif
