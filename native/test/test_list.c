
#include "base/error.h"
#include "base/list.h"
#include "run.h"

enum { MANY = 3 * LIST_CHUNK + 5, THREADS = 4, EACH = 2000 };

static void numbers_in_order(void) {
    static list l = {.item_size = sizeof(int), .items_name = "ints"};
    void *places[MANY];
    CHECK(list_find(&l, 0) == NULL);
    for (int i = 0; i < MANY; i++) {
        CHECK_INT(list_append(&l, &i), i);
        places[i] = list_find(&l, i);
    }
    for (int i = 0; i < MANY; i++) {
        CHECK(list_find(&l, i) == places[i]); /* nothing moved */
        CHECK_INT(*(int *)list_find(&l, i), i);
    }
    CHECK(list_find(&l, -1) == NULL);
    CHECK(list_find(&l, MANY) == NULL);
    CHECK(list_find(&l, INT64_MIN) == NULL);
    CHECK(list_find(&l, INT64_MAX) == NULL);
}

static void gives_an_equal_item_its_number(void) {
    static list l = {.item_size = sizeof(double), .items_name = "doubles"};
    for (int i = 0; i < MANY; i++) {
        double item = 0.5 * i;
        CHECK_INT(list_find_or_append(&l, &item), i);
    }
    for (int i = 0; i < MANY; i++) {
        double item = 0.5 * i;
        CHECK_INT(list_find_or_append(&l, &item), i);
    }
    CHECK_INT(atomic_load(&l.count), MANY);
}

static void refuses_when_full(void) {
    static list l = {.item_size = 1, .items_name = "crumbs"};
    int64_t room = (int64_t)LIST_CHUNK * LIST_CHUNKS, number = 0;
    for (int64_t i = 0; i < room; i++) number = list_append(&l, "x");
    CHECK_INT(number, room - 1);
    CHECK_INT(list_append(&l, "x"), -1);
    CHECK_STR(error_get(), "more than 1048576 crumbs were used in one process; create them once and use them again");
    CHECK_INT(list_find_or_append(&l, "x"), 0);
    CHECK_INT(list_find_or_append(&l, "y"), -1);
}

/* Each thread appends its own items, and all of them number the same ones. Copying a large item takes long enough
 * for threads to get into each other's way. */
typedef struct large {
    int number;
    char rest[4092];
} large;
static list own = {.item_size = sizeof(large), .items_name = "large items"},
            shared = {.item_size = sizeof(int), .items_name = "ints"};
static int numbers[THREADS][EACH];
static pthread_barrier_t together;

static void *append(void *argument) {
    int thread = (int)(intptr_t)argument;
    pthread_barrier_wait(&together);
    for (int i = 0; i < EACH; i++) {
        large item = {.number = thread * EACH + i};
        int same = i / 8;
        const large *found = list_find(&own, list_append(&own, &item));
        CHECK(found && found->number == item.number);
        numbers[thread][i] = (int)list_find_or_append(&shared, &same);
    }
    return NULL;
}

static void is_shared_by_threads(void) {
    static int seen[THREADS * EACH];
    pthread_barrier_init(&together, NULL, THREADS);
    threads_run(THREADS, append);
    pthread_barrier_destroy(&together);
    CHECK_INT(atomic_load(&own.count), THREADS * EACH);
    for (int i = 0; i < THREADS * EACH; i++) seen[((large *)list_find(&own, i))->number]++;
    for (int i = 0; i < THREADS * EACH; i++) CHECK_INT(seen[i], 1);
    CHECK_INT(atomic_load(&shared.count), EACH / 8);
    for (int i = 0; i < EACH; i++)
        for (int t = 0; t < THREADS; t++) CHECK_INT(*(int *)list_find(&shared, numbers[t][i]), i / 8);
}

int main(void) {
    numbers_in_order();
    gives_an_equal_item_its_number();
    refuses_when_full();
    is_shared_by_threads();
    return check_failures();
}
