/* Shared libraries that are looked for while the process runs, and their functions: MPI, a GPU's driver, NCCL. */
#ifndef MPIXLA_NATIVE_LOADER_H
#define MPIXLA_NATIVE_LOADER_H

#include <pthread.h>
#include <stddef.h>

#include "base/error.h"

/* A function's name, and where a struct of pointers to functions has it (offsetof). One whose name is NULL is passed
 * over. */
typedef struct loader_row {
    const char *name;
    size_t place;
} loader_row;

/* Looks a function up in a library that dlopen gave and in those that it depends on. `place` is the address of a
 * pointer to functions, which becomes NULL if there is none. Returns whether there is one. */
int loader_function(void *library, const char *name, void *place);

/* The same for `count` functions of a struct. Returns the first name that is not there, or NULL. */
const char *loader_functions(void *library, const loader_row *rows, size_t count, void *functions);

/* A library that is found when it is first needed: then once and for all, or never. Define one as
 * `static loader l = {.lock = PTHREAD_MUTEX_INITIALIZER};`. */
typedef struct loader {
    pthread_mutex_t lock;
    char added[1024];          /* a file that the front end knows of; "": none */
    const void *found;         /* what loader_get returns */
    char why_not[ERROR_BYTES]; /* "" before the first try */
} loader;

/* Tells of a file; it is copied. */
void loader_add(loader *l, const char *file);

/* What `find` gives, which is called with the lock, and once in a process: NULL with error_set if there is none. The
 * number is passed on. */
const void *loader_get(loader *l, const void *(*find)(int number), int number);

/* Opens the library that the environment's variable names, or without it the first of `count` files that can be; those
 * that are "" are passed over. With `is_loaded`, only one that is in the process already. `*file` becomes the one that
 * was opened, or the last that was tried. Returns NULL if none was opened: dlerror says why. */
void *loader_open(const char *variable, const char *const *files, size_t count, int is_loaded, const char **file);

#endif
