
#include "base/error.h"
#include "call/site.h"
#include "mpixla.h"
#include "run.h"

enum { THREADS = 4, SITES = 3000 };

static void keeps_names(void) {
    CHECK_STR(site_text(42), ""); /* while there is none */
    CHECK_INT(mpixla_site_name(42, "model.py:42 in step"), 0);
    CHECK_STR(site_text(42), "model.py:42 in step");
    const char *kept = site_text(42);
    CHECK_INT(mpixla_site_name(42, "another line"), 0); /* the first stays, where it is */
    CHECK(site_text(42) == kept);
    CHECK_STR(kept, "model.py:42 in step");
    CHECK_INT(mpixla_site_name(-42, "a negative number"), 0);
    CHECK_STR(site_text(-42), "a negative number");
    CHECK_INT(mpixla_site_name(7, ""), 0);
    CHECK_STR(site_text(7), "");
    CHECK_STR(site_text(43), "");
    CHECK_STR(site_text(INT64_MIN), "");
}

static void has_no_name_for_unknown(void) {
    CHECK_INT(mpixla_site_name(0, "somewhere"), -1);
    CHECK_STR(error_get(), "a site has a number other than 0");
    CHECK_STR(site_text(0), "");
}

static void cuts_long_names(void) {
    char text[2 * SITE_TEXT_BYTES];
    memset(text, 'x', sizeof text - 1);
    text[sizeof text - 1] = '\0';
    CHECK_INT(mpixla_site_name(1000, text), 0);
    CHECK_INT(strlen(site_text(1000)), SITE_TEXT_BYTES - 1);
    for (size_t i = 0; i + 2 < sizeof text; i += 2) memcpy(text + i, "\xc3\xbc", 2); /* half a character is left */
    CHECK_INT(mpixla_site_name(1001, text), 0);
    CHECK_INT(strlen(site_text(1001)), SITE_TEXT_BYTES - 1);
    CHECK_STR(site_text(1001) + SITE_TEXT_BYTES - 4, "\xc3\xbc?");
}

static int64_t read_text(const char *text) {
    return site_parse(text, strlen(text));
}

static void reads_exported_ones(void) {
    CHECK_INT(read_text("00000000000000ff old.py:1 in f"), 255);
    CHECK_STR(site_text(255), "old.py:1 in f");
    CHECK_INT(read_text("00000000000000ff new.py:1 in f"), 255);
    CHECK_STR(site_text(255), "old.py:1 in f");
    CHECK_INT(read_text("7fffffffffffffff "), INT64_MAX); /* without a name */
    CHECK_STR(site_text(INT64_MAX), "");
    CHECK_INT(read_text("0123456789abcdef x"), 0x0123456789abcdef);
    CHECK_INT(site_parse("00000000000000fe cut here", 21), 254); /* it ends where its bytes do */
    CHECK_STR(site_text(254), "cut ");
    CHECK_INT(site_parse("00000000000000fd a\0b", 20), 253);
    CHECK_STR(site_text(253), "a");
}

/* Programs come from anywhere. */
static void reads_nothing_else(void) {
    static const char *const none[] = {"",
                                       " ",
                                       "00000000000000ff",
                                       "00000000000000ff\tx",
                                       "00000000000000ffx y",
                                       "0000000000000000 zero",
                                       "ffffffffffffffff negative",
                                       "8000000000000000 negative",
                                       "00000000000000FF upper",
                                       "-0000000000000ff minus",
                                       "0x000000000000ff hex",
                                       "0000000 00000ff blank",
                                       "\xc3\xbc\xc3\xbc\xc3\xbc\xc3\xbc\xc3\xbc\xc3\xbc\xc3\xbc\xc3\xbc no digits"};
    for (size_t i = 0; i < sizeof none / sizeof none[0]; i++) CHECK_INT(read_text(none[i]), 0);
    CHECK_INT(site_parse(NULL, 0), 0);
}

static int64_t number_of(int thread, int i) {
    return INT64_C(0x5eed0000) + i + (int64_t)thread % 2 * SITES; /* two threads have the same */
}

static void *name_many(void *number) {
    int thread = (int)(intptr_t)number;
    char text[64], read[96];
    for (int i = 0; i < SITES; i++) {
        int64_t site = number_of(thread, i);
        snprintf(text, sizeof text, "line %lld", (long long)site);
        snprintf(read, sizeof read, "%016llx %s", (unsigned long long)site, text);
        if (i % 2)
            CHECK_INT(mpixla_site_name(site, text), 0);
        else
            CHECK_INT(read_text(read), site);
        CHECK_STR(site_text(site), text);
    }
    return NULL;
}

/* Names stay where they are. */
static void is_for_many_threads(void) {
    const char *kept = site_text(42);
    threads_run(THREADS, name_many);
    for (int i = 0; i < SITES; i++) {
        char text[64];
        snprintf(text, sizeof text, "line %lld", (long long)number_of(1, i));
        CHECK_STR(site_text(number_of(1, i)), text);
    }
    CHECK(site_text(42) == kept);
    CHECK_STR(kept, "model.py:42 in step");
}

int main(void) {
    keeps_names();
    has_no_name_for_unknown();
    cuts_long_names();
    reads_exported_ones();
    reads_nothing_else();
    is_for_many_threads();
    return check_failures();
}
