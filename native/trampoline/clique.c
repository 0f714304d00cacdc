#include "trampoline/clique.h"

#include <pthread.h>
#include <string.h>

/* Offers that XLA has not asked for yet. */
enum { OFFERS = 64 };
static struct {
    int64_t comm;
    int color, key;
} offers[OFFERS];
static int offered;
static pthread_mutex_t offering = PTHREAD_MUTEX_INITIALIZER;

int mpixla_trampoline_offer(int64_t comm, int color, int key) {
    pthread_mutex_lock(&offering);
    const int has_room = offered < OFFERS;
    if (has_room) {
        offers[offered].comm = comm;
        offers[offered].color = color;
        offers[offered].key = key;
        offered++;
    }
    pthread_mutex_unlock(&offering);
    return has_room ? 0 : -1;
}

int mpixla_trampoline_offers(void) {
    pthread_mutex_lock(&offering);
    int count = offered;
    pthread_mutex_unlock(&offering);
    return count;
}

int64_t clique_offer_take(int color, int key) {
    int64_t comm = -1;
    pthread_mutex_lock(&offering);
    int i = offered - 1;
    while (i >= 0 && (offers[i].color != color || offers[i].key != key)) i--;
    if (i >= 0) {
        comm = offers[i].comm;
        offered--;
        memmove(&offers[i], &offers[i + 1], (size_t)(offered - i) * sizeof offers[0]);
    }
    pthread_mutex_unlock(&offering);
    return comm;
}
