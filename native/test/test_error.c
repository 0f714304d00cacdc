#include <pthread.h>
#include <stdlib.h>

#include "base/error.h"
#include "check.h"
#include "mpixla.h"

static void words_the_failure(void) {
    CHECK_STR(error_get(), "");
    CHECK_INT(error_set("%s is %d", "six", 6), -1);
    CHECK_STR(error_get(), "six is 6");
    CHECK_STR(mpixla_last_error(), "six is 6");
    error_set("another");
    CHECK_STR(error_get(), "another");
}

static void cuts_a_long_sentence(void) {
    char *longest = malloc(2 * ERROR_BYTES);
    memset(longest, 'x', 2 * ERROR_BYTES - 1);
    longest[2 * ERROR_BYTES - 1] = '\0';
    CHECK_INT(error_set("%s", longest), -1);
    CHECK_INT(strlen(error_get()), ERROR_BYTES - 1);
    free(longest);
}

static void *other_thread(void *unused) {
    CHECK_STR(error_get(), "");
    error_set("of the other thread");
    CHECK_STR(error_get(), "of the other thread");
    return unused;
}

static void is_one_for_each_thread(void) {
    pthread_t thread;
    error_set("of this thread");
    CHECK(pthread_create(&thread, NULL, other_thread, NULL) == 0);
    pthread_join(thread, NULL);
    CHECK_STR(error_get(), "of this thread");
}

int main(void) {
    words_the_failure();
    cuts_a_long_sentence();
    is_one_for_each_thread();
    return check_failures();
}
