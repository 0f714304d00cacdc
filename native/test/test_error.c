#include <stdlib.h>

#include "base/error.h"
#include "base/text.h"
#include "mpixla.h"
#include "run.h"

static void words_the_failure(void) {
    CHECK_STR(error_get(), "");
    CHECK_INT(error_set("%s is %d", "six", 6), REFUSED);
    CHECK_STR(error_get(), "six is 6");
    CHECK_STR(mpixla_last_error(), "six is 6");
    error_set("another");
    CHECK_STR(error_get(), "another");
}

static void cuts_a_long_sentence(void) {
    char *longest = malloc(2 * ERROR_BYTES);
    memset(longest, 'x', 2 * ERROR_BYTES - 1);
    longest[2 * ERROR_BYTES - 1] = '\0';
    CHECK_INT(error_set("%s", longest), REFUSED);
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
    error_set("of this thread");
    threads_run(1, other_thread);
    CHECK_STR(error_get(), "of this thread");
}

/* Python cannot have anything else, and raises another exception than the one that it was to raise. */
static void is_text_that_python_can_have(void) {
    static const struct {
        const char *given, *kept;
    } cases[] = {
        {"", ""},
        {"plain\nof two lines", "plain\nof two lines"},
        {"\xc3\xbc \xe2\x82\xac \xf0\x9f\x90\x8d", "\xc3\xbc \xe2\x82\xac \xf0\x9f\x90\x8d"},
        {"cut \xc3", "cut ?"},
        {"cut \xe2\x82", "cut ??"},
        {"cut \xf0\x9f\x90", "cut ???"},
        {"\xc3(", "?("},
        {"\xff\xfe\x80", "???"},
        {"\xc0\xaf \xe0\x80\xaf \xf0\x80\x80\xaf", "?? ??? ????"}, /* longer than need be */
        {"\xed\xa0\x80", "???"},                                   /* half of a pair of UTF-16 */
        {"\xf4\x90\x80\x80 \xf5\x80\x80\x80", "???? ????"},        /* beyond the last character */
        {"\x1b[31m\r\t\x7f", "?[31m???"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        error_set("%s", cases[i].given);
        CHECK_STR(error_get(), cases[i].kept);
    }
}

static void ranks_in_words(void) {
    static const struct {
        const char *chosen, *words;
    } cases[] = {
        {"", ""},
        {"...", ""},
        {"x", "0"},
        {"xx", "0 and 1"},
        {"xxx", "0 to 2"},
        {"x.x..xxxxx.", "0, 2 and 5 to 9"},
        {".xx.x", "1, 2 and 4"},
        {"x.x.x.x.x.x.x.x.x.x.x.x.xx.x", "0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22 and 3 more"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        bool chosen[32];
        char text[128] = "";
        int64_t n = 0;
        for (; cases[i].chosen[n]; n++) chosen[n] = cases[i].chosen[n] == 'x';
        CHECK_INT(text_add_ranks(text, sizeof text, 0, chosen, n), strlen(cases[i].words));
        CHECK_STR(text, cases[i].words);
    }
}

int main(void) {
    words_the_failure();
    cuts_a_long_sentence();
    is_one_for_each_thread();
    is_text_that_python_can_have();
    ranks_in_words();
    return check_failures();
}
