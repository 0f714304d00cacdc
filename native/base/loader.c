#include "base/loader.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int loader_function(void *library, const char *name, void *place) {
    void *function = dlsym(library, name);
    memcpy(place, &function, sizeof function);
    return function != NULL;
}

const char *loader_functions(void *library, const loader_row *rows, size_t count, void *functions) {
    const char *missing = NULL;
    for (size_t i = 0; i < count; i++)
        if (rows[i].name && !loader_function(library, rows[i].name, (char *)functions + rows[i].place) && !missing)
            missing = rows[i].name;
    return missing;
}

void loader_add(loader *l, const char *file) {
    pthread_mutex_lock(&l->lock);
    snprintf(l->added, sizeof l->added, "%s", file);
    pthread_mutex_unlock(&l->lock);
}

const void *loader_get(loader *l, const void *(*find)(int number), int number) {
    pthread_mutex_lock(&l->lock);
    if (!l->found && !*l->why_not) {
        l->found = find(number);
        if (!l->found) snprintf(l->why_not, sizeof l->why_not, "%s", error_get());
    }
    const void *found = l->found;
    pthread_mutex_unlock(&l->lock);
    return found ? found : error_null("%s", l->why_not);
}

void *loader_open(const char *variable, const char *const *files, size_t count, int is_loaded, const char **file) {
    const char *const given = getenv(variable);
    const int mode = RTLD_NOW | RTLD_LOCAL | (is_loaded ? RTLD_NOLOAD : 0), is_given = given && *given;
    void *library = NULL;
    for (size_t i = 0; i < (is_given ? 1 : count) && !library; i++) {
        const char *name = is_given ? given : files[i];
        if (!*name) continue; /* dlopen would give the program itself */
        *file = name;
        library = dlopen(name, mode); /* NOLINT(*.GenericTaint): who runs it names it */
    }
    return library;
}
