/* A hash table with chaining, under a lock: only messages and exported programs look names up. */
#include "call/site.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/feature.h"
#include "base/hash.h"
#include "base/text.h"
#include "mpixla.h"

enum { BUCKETS = 4096, DIGITS = 16 };

typedef struct site_entry {
    struct site_entry *next; /* of this bucket */
    int64_t site;
    int is_marked; /* site_mark_new was called for it */
    char text[];
} site_entry;

static site_entry *buckets[BUCKETS];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static _Thread_local int64_t thread_site;

int64_t site_of_thread(void) {
    return thread_site;
}

void mpixla_site_call(int64_t site) {
    thread_site = site;
}

/* Returns the link that points to the site's entry, or the NULL link at the end of its bucket. The caller holds the
 * lock. */
static site_entry **site_link_find(int64_t site) {
    site_entry **at = &buckets[hash_combine((uint64_t)site, 0) % BUCKETS];
    while (*at && (*at)->site != site) at = &(*at)->next;
    return at;
}

/* Adds a site with its text, cut to SITE_TEXT_BYTES, unless it has one. The caller holds the lock. Returns 0, or
 * REFUSED without memory. */
static int site_add(int64_t site, const char *text, size_t bytes) {
    site_entry **at = site_link_find(site);
    if (*at) return 0;
    if (bytes >= SITE_TEXT_BYTES) bytes = SITE_TEXT_BYTES - 1;
    site_entry *made = calloc(1, sizeof *made + bytes + 1);
    if (!made) return error_set("out of memory for the line that a call comes from");
    made->site = site;
    memcpy(made->text, text, bytes);
    text_clean(made->text);
    *at = made;
    return 0;
}

/* Registers the text of a site (copied), "model.py:42 in step", unless it has one. Returns 0; REFUSED for site 0 or
 * without memory. Takes a lock. */
int mpixla_site_name(int64_t site, const char *text) {
    if (site == 0) return error_set("a site has a number other than 0");
    if (features_get() & FEATURE_FORKED) return 0; /* no call is made that would ask for the name */
    pthread_mutex_lock(&lock);
    int failed = site_add(site, text, strlen(text));
    pthread_mutex_unlock(&lock);
    return failed;
}

const char *site_text(int64_t site) {
    pthread_mutex_lock(&lock);
    const site_entry *found = *site_link_find(site);
    pthread_mutex_unlock(&lock);
    return found ? found->text : "";
}

int site_mark_new(int64_t site) {
    pthread_mutex_lock(&lock);
    site_entry *found = site_add(site, "", 0) == 0 ? *site_link_find(site) : NULL; /* without memory it is not new */
    const int is_new = found && !found->is_marked;
    if (is_new) found->is_marked = 1;
    pthread_mutex_unlock(&lock);
    return is_new;
}

/* Returns the value of a hexadecimal digit; -1 for another character. */
static int site_digit(char c) {
    if (c >= '0' && c <= '9') return c - '0';
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

int64_t site_parse(const char *text, size_t bytes) {
    uint64_t site = 0;
    if (bytes <= DIGITS || text[DIGITS] != ' ') return 0;
    for (int i = 0; i < DIGITS; i++) {
        int digit = site_digit(text[i]);
        if (digit < 0) return 0;
        site = site << 4 | (uint64_t)digit;
    }
    if (site == 0 || site > INT64_MAX) return 0;
    pthread_mutex_lock(&lock);
    int failed = site_add((int64_t)site, text + DIGITS + 1, bytes - DIGITS - 1);
    pthread_mutex_unlock(&lock);
    return failed ? 0 : (int64_t)site;
}
