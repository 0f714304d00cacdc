/* A hash table with open addressing. Names are looked up where something is told to people, and by exported programs:
 * so a lock will do.
 */
#include "call/site.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/feature.h"
#include "base/text.h"
#include "mpixla.h"

enum { FIRST_PLACES = 256, DIGITS = 16 };

typedef struct named {
    int64_t site; /* 0: the place is free */
    char *text;
} named;

static named *places;
static size_t capacity, used; /* a power of two; at most half of it */
static pthread_mutex_t table = PTHREAD_MUTEX_INITIALIZER;
static _Thread_local int64_t of_thread;

int64_t site_of_thread(void) {
    return of_thread;
}

void mpixla_site_call(int64_t site) {
    of_thread = site;
}

/* The place of the site, or the free one where it belongs. */
static named *place_of(named *all, size_t count, int64_t site) {
    size_t i = (size_t)((uint64_t)site * UINT64_C(0x9E3779B97F4A7C15)) & (count - 1);
    while (all[i].site != 0 && all[i].site != site) i = (i + 1) & (count - 1);
    return &all[i];
}

static int grow(void) {
    if (2 * (used + 1) <= capacity) return 0;
    size_t wider = capacity > 0 ? 2 * capacity : FIRST_PLACES;
    named *made = calloc(wider, sizeof *made);
    if (!made) return error_set("out of memory for the lines that calls come from");
    for (size_t i = 0; i < capacity; i++)
        if (places[i].site != 0) *place_of(made, wider, places[i].site) = places[i];
    free(places);
    places = made;
    capacity = wider;
    return 0;
}

/* With the lock. */
static int name(int64_t site, const char *text, size_t bytes) {
    if (capacity > 0 && place_of(places, capacity, site)->site == site) return 0;
    if (grow()) return REFUSED;
    if (bytes >= SITE_TEXT_BYTES) bytes = SITE_TEXT_BYTES - 1;
    char *kept = calloc(1, bytes + 1);
    if (!kept) return error_set("out of memory for the line that a call comes from");
    memcpy(kept, text, bytes);
    text_clean(kept);
    *place_of(places, capacity, site) = (named){.site = site, .text = kept};
    used++;
    return 0;
}

int mpixla_site_name(int64_t site, const char *text) {
    if (site == 0) return error_set("a site has a number other than 0");
    if (features_get() & FEATURE_FORKED) return 0; /* no call is made that would ask for the name */
    pthread_mutex_lock(&table);
    int failed = name(site, text, strlen(text));
    pthread_mutex_unlock(&table);
    return failed;
}

const char *site_text(int64_t site) {
    const char *text = "";
    pthread_mutex_lock(&table);
    if (site != 0 && capacity > 0 && place_of(places, capacity, site)->site == site)
        text = place_of(places, capacity, site)->text;
    pthread_mutex_unlock(&table);
    return text;
}

static int digit_of(char c) {
    if (c >= '0' && c <= '9') return c - '0';
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

int64_t site_read(const char *text, size_t bytes) {
    uint64_t site = 0;
    if (bytes <= DIGITS || text[DIGITS] != ' ') return 0;
    for (int i = 0; i < DIGITS; i++) {
        int digit = digit_of(text[i]);
        if (digit < 0) return 0;
        site = site << 4 | (uint64_t)digit;
    }
    if (site == 0 || site > INT64_MAX) return 0;
    pthread_mutex_lock(&table);
    int failed = name((int64_t)site, text + DIGITS + 1, bytes - DIGITS - 1);
    pthread_mutex_unlock(&table);
    return failed ? 0 : (int64_t)site;
}
