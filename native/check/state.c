#include "check/state.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/feature.h"

atomic_int check_mode_now = CHECK_OFF;

void check_mode_set(check_mode mode) {
    atomic_store(&check_mode_now, mode);
    (void)feature_set(FEATURE_CHECKS, mode != CHECK_OFF);
}

static check_state *states;
static pthread_mutex_t listing = PTHREAD_MUTEX_INITIALIZER;
static void (*_Atomic let_go)(check_state *s);

static void state_free(void *which) {
    check_state *s = which;
    pthread_mutex_lock(&listing);
    check_state **at = &states;
    while (*at && *at != s) at = &(*at)->next;
    if (*at) *at = s->next;
    pthread_mutex_unlock(&listing);
    void (*freed)(check_state *) = atomic_load(&let_go);
    if (freed) freed(s);
    free(s);
}

check_state *check_state_of(comm_entry *entry) {
    check_state *s = comm_attached(entry, COMM_SLOT_CHECKS);
    if (s) return s;
    s = calloc(1, sizeof *s);
    if (!s) {
        (void)error_set("out of memory for the checks of communicator '%s'", entry->name);
        return NULL;
    }
    s->entry = entry;
    comm_slot_freed_by(COMM_SLOT_CHECKS, state_free);
    pthread_mutex_lock(&listing);
    s->next = states;
    states = s;
    pthread_mutex_unlock(&listing);
    comm_attach(entry, COMM_SLOT_CHECKS, s);
    return s;
}

int check_states_each(int (*act)(check_state *s)) {
    int found = 0;
    pthread_mutex_lock(&listing);
    for (check_state *s = states; s; s = s->next) found += act(s) != 0;
    pthread_mutex_unlock(&listing);
    return found;
}

void check_state_freed_by(void (*freed)(check_state *s)) {
    atomic_store(&let_go, freed);
}
