/* A hash table. Names are looked up where something is told to people, and by exported programs: so a lock will do. */
#include "call/site.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/feature.h"
#include "base/hash.h"
#include "base/text.h"
#include "mpixla.h"

enum { PLACES = 4096, DIGITS = 16 };

typedef struct named {
    struct named *next; /* of this place */
    int64_t site;
    int is_marked; /* site_is_new was called for it */
    char text[];
} named;

static named *places[PLACES];
static pthread_mutex_t table = PTHREAD_MUTEX_INITIALIZER;
static _Thread_local int64_t of_thread;

int64_t site_of_thread(void) {
    return of_thread;
}

void mpixla_site_call(int64_t site) {
    of_thread = site;
}

/* What points to the site, or the end of its place. With the lock, as the next. */
static named **find(int64_t site) {
    named **at = &places[hash_combine((uint64_t)site, 0) % PLACES];
    while (*at && (*at)->site != site) at = &(*at)->next;
    return at;
}

static int name(int64_t site, const char *text, size_t bytes) {
    named **at = find(site);
    if (*at) return 0;
    if (bytes >= SITE_TEXT_BYTES) bytes = SITE_TEXT_BYTES - 1;
    named *made = calloc(1, sizeof *made + bytes + 1);
    if (!made) return error_set("out of memory for the line that a call comes from");
    made->site = site;
    memcpy(made->text, text, bytes);
    text_clean(made->text);
    *at = made;
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
    pthread_mutex_lock(&table);
    const named *found = *find(site);
    pthread_mutex_unlock(&table);
    return found ? found->text : "";
}

int site_is_new(int64_t site) {
    pthread_mutex_lock(&table);
    named *found = name(site, "", 0) == 0 ? *find(site) : NULL; /* no memory: nothing is told */
    const int is_new = found && !found->is_marked;
    if (is_new) found->is_marked = 1;
    pthread_mutex_unlock(&table);
    return is_new;
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
