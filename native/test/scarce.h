/* What a process does that has no memory left for what is large. */
#ifndef MPIXLA_TEST_SCARCE_H
#define MPIXLA_TEST_SCARCE_H

typedef struct scarce_end {
    int status;       /* with which it exits; 0 where `run` returns, the negative number of a signal that ends it */
    const char *told; /* on standard error, until the next such call */
} scarce_end;

/* Runs a function in a process of its own, in which an allocation of many gigabytes fails. */
scarce_end scarce_run(void (*run)(void));

/* Whether the process has no memory but its own: sanitizers and valgrind have some of their own for each byte, and keep
 * what was freed for a while. */
int scarce_is_real(void);

#endif
