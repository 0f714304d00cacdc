/* Processes of this host, as its kernel knows them. */
#ifndef MPIXLA_NATIVE_PROCESS_H
#define MPIXLA_NATIVE_PROCESS_H

#include <stdint.h>

typedef enum process_state {
    PROCESS_THERE,
    PROCESS_STOPPED, /* by a signal or a debugger */
    PROCESS_GONE     /* it has ended; a zombie has, too */
} process_state;

/* A process as another one of the host finds it again. The kernel uses numbers again, so a number alone is no proof. */
typedef struct process_id {
    int64_t number;  /* getpid() */
    int64_t started; /* clock ticks from the start of the system; 0: unknown, as on macOS */
    int64_t space;   /* in which the two mean it: a container has its own; 0: unknown, or there is only one */
} process_id;

/* This process. Reads /proc on Linux. */
process_id process_self(void);

/* When the process with this number in the caller's space started, as in process_id; 0: unknown, or it is gone. */
int64_t process_started(int64_t number);

/* The state of a process. PROCESS_GONE is certain: the number is not in use, is a zombie's, or belongs to a process
 * that started at another time. A process of another space counts as PROCESS_THERE, as does one that cannot be looked
 * at. */
process_state process_look(const process_id *id);

/* How much of a processor this process has used lately, in per cent: since a process_measure that was one to two
 * seconds ago, if that is called again and again; -1 if it never was. One thread uses both. */
int64_t process_percent(void);
void process_measure(void);

#endif
