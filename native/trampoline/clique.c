#include "trampoline/clique.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/list.h"

static list cliques = {.item_size = sizeof(clique), .what = "cliques of devices"};

/* Those that XLA has not yet asked for. */
enum { OFFERS = 64 };
static struct {
    int64_t number;
    int color, key;
} offers[OFFERS];
static int offered;
static pthread_mutex_t offering = PTHREAD_MUTEX_INITIALIZER;

clique *clique_find(int64_t number) {
    clique *c = list_find(&cliques, number);
    if (!c) error_set("XLA has used a communicator that it was not given");
    return c;
}

static int64_t clique_add(int64_t comm) {
    comm_entry *entry = comm_find(comm);
    if (!entry) return REFUSED;
    clique made = {.entry = entry, .comm = comm, .peers = calloc((size_t)entry->size, sizeof *made.peers)};
    if (!made.peers) return error_set("out of memory for a communicator of %d ranks", entry->size);
    int64_t number = list_append(&cliques, &made);
    if (number < 0) free(made.peers);
    return number;
}

int64_t mpixla_trampoline_offer(int64_t comm, int color, int key) {
    int64_t number = -1;
    pthread_mutex_lock(&offering);
    if (offered == OFFERS)
        error_set("more than %d communicators are offered to XLA that it has not asked for", OFFERS);
    else
        number = clique_add(comm);
    if (number >= 0) {
        offers[offered].number = number;
        offers[offered].color = color;
        offers[offered].key = key;
        offered++;
    }
    pthread_mutex_unlock(&offering);
    return number;
}

int mpixla_trampoline_offers(void) {
    pthread_mutex_lock(&offering);
    int count = offered;
    pthread_mutex_unlock(&offering);
    return count;
}

/* The newest offer that fits: cliques with the same first device and the same place in it look alike, and the front end
 * opens one at a time. */
int64_t clique_take(int color, int key) {
    int64_t number = -1;
    pthread_mutex_lock(&offering);
    int i = offered - 1;
    while (i >= 0 && (offers[i].color != color || offers[i].key != key)) i--;
    if (i >= 0) {
        number = offers[i].number;
        offered--;
        memmove(&offers[i], &offers[i + 1], (size_t)(offered - i) * sizeof offers[0]);
    }
    pthread_mutex_unlock(&offering);
    return number;
}

/* NULL with error_set if there is none. */
static clique_peer *peer_of(const clique *c, int place) {
    if (!c) return NULL;
    if (place >= 0 && place < c->entry->size) return &c->peers[place];
    error_set("a communicator of XLA's has no member at place %d: it has %d", place, c->entry->size);
    return NULL;
}

int mpixla_trampoline_count(int64_t number, int place, int64_t counts[3]) {
    clique *c = clique_find(number);
    clique_peer *peer = peer_of(c, place);
    if (!peer) return REFUSED;
    counts[0] = atomic_load(&c->entry->collectives);
    counts[1] = atomic_load(&peer->sent);
    counts[2] = atomic_load(&peer->received);
    return 0;
}

int mpixla_trampoline_left(int64_t number, int place, const int64_t counts[3]) {
    clique_peer *peer = peer_of(clique_find(number), place);
    if (!peer) return REFUSED;
    peer->collectives = counts[0];
    peer->sent_here = counts[1];
    peer->received_here = counts[2];
    atomic_store(&peer->has_left, 1);
    return 0;
}

static int waits_for(clique *c, int place) {
    clique_peer *peer = &c->peers[place];
    if (!atomic_load(&peer->has_left)) return 0;
    return atomic_load(&c->in_collective) > peer->collectives ||
           (atomic_load(&c->receiving_from) == place + 1 && atomic_load(&peer->received) > peer->sent_here) ||
           (atomic_load(&c->sending_to) == place + 1 && atomic_load(&peer->sent) > peer->received_here);
}

int mpixla_trampoline_stuck(int64_t number) {
    clique *c = clique_find(number);
    for (int place = 0; c && place < c->entry->size; place++)
        if (waits_for(c, place)) return place;
    return -1;
}
