/* Shared libraries that are looked for: the argument is one that is there, and that has no function `nobody_has_this`.
 */
#include <dlfcn.h>
#include <stdlib.h>

#include "base/loader.h"
#include "check.h"

enum { FILES = 3 };
static const char *const variable = "MPIXLA_TEST_LIBRARY";
static const char *there;
static int finds;

static void finds_functions(void *library) {
    struct {
        void *unnamed, *first, *missing, *last;
    } f = {.unnamed = &f, .missing = &f};
    const loader_row rows[] = {{NULL, 0},
                               {"mpixla_last_error", (size_t)((char *)&f.first - (char *)&f)},
                               {"nobody_has_this", (size_t)((char *)&f.missing - (char *)&f)},
                               {"nor_this", (size_t)((char *)&f.missing - (char *)&f)},
                               {"mpixla_start", (size_t)((char *)&f.last - (char *)&f)}};
    const char *missing = loader_functions(library, rows, sizeof rows / sizeof rows[0], &f);
    CHECK_STR(missing, "nobody_has_this");
    CHECK(f.unnamed == &f && f.missing == NULL);
    CHECK(f.first == dlsym(library, "mpixla_last_error") && f.first);
    CHECK(f.last == dlsym(library, "mpixla_start") && f.last);
    CHECK(loader_functions(library, rows, 2, &f) == NULL);
}

static void opens_the_first_that_is_there(void) {
    const char *const files[FILES] = {"", "/nowhere/first.so", there}, *file = "none";
    unsetenv(variable);
    CHECK(loader_open(variable, files, 1, 0, &file) == NULL); /* "" is not the program itself */
    CHECK_STR(file, "none");
    CHECK(loader_open(variable, files, FILES, 1, &file) == NULL); /* it is not loaded yet */
    CHECK(loader_open(variable, files, 2, 0, &file) == NULL);
    CHECK_STR(file, "/nowhere/first.so");
    CHECK_IN(dlerror(), "/nowhere/first.so");
    void *library = loader_open(variable, files, FILES, 0, &file);
    CHECK(library != NULL);
    CHECK_STR(file, there);
    CHECK(loader_open(variable, files, FILES, 1, &file) == library);
    finds_functions(library);
    /* The variable's file is the only one, unless it is empty. */
    setenv(variable, "/nowhere/second.so", 1);
    CHECK(loader_open(variable, files, FILES, 0, &file) == NULL);
    CHECK_STR(file, "/nowhere/second.so");
    setenv(variable, "", 1);
    CHECK(loader_open(variable, files, FILES, 0, &file) == library);
}

static const void *find(int number) {
    finds++;
    if (number > 0) return &finds;
    (void)error_set("there is no library number %d", number);
    return NULL;
}

static void finds_once(void) {
    static loader here = {.lock = PTHREAD_MUTEX_INITIALIZER}, nowhere = {.lock = PTHREAD_MUTEX_INITIALIZER};
    loader_add(&here, "a file");
    CHECK_STR(here.added, "a file");
    for (int i = 0; i < 2; i++) {
        CHECK(loader_get(&here, find, 1) == &finds);
        CHECK_INT(finds, 1);
    }
    for (int i = 0; i < 2; i++) {
        (void)error_set("before");
        CHECK(loader_get(&nowhere, find, 0) == NULL);
        CHECK_STR(error_get(), "there is no library number 0");
        CHECK_INT(finds, 2);
    }
}

int main(int argc, char **argv) {
    if (argc < 2) return 2;
    there = argv[1];
    opens_the_first_that_is_there();
    finds_once();
    return check_failures();
}
