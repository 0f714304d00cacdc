/* Who is whose neighbour, as MPI says it, and who is how far away. */
#include "check.h"
#include "fixture.h"
#include "mpi/comm.h"

enum { NOBODY = MPIXLA_PROC_NULL };

static int64_t registered(int number) {
    return mpixla_comm_register(fake->handle(number), "new");
}

static const topology *topology_of(int number) {
    int64_t id = registered(number);
    CHECK(id >= 0);
    return comm_find_any(id)->topology;
}

static void check_slots(const topology_slots *s, int64_t number, const int64_t *ranks, const int64_t *tags) {
    CHECK_INT(s->number, number);
    for (int64_t i = 0; i < number && i < s->number; i++) {
        CHECK_INT(s->ranks[i], ranks[i]);
        CHECK_INT(s->tags[i], tags[i]);
    }
}

/* Rank 10 of 3 * 2 * 2: at the upper wall of the first dimension, which has walls, and in rings otherwise. */
static void grids(void) {
    static const int sizes[] = {3, 2, 2}, periods[] = {0, 1, 1}, place[] = {2, 1, 0};
    static const int64_t ranks[] = {6, NOBODY, 8, 8, 11, 11}, out[] = {0, 1, 2, 3, 4, 5}, in[] = {1, 0, 3, 2, 5, 4};
    int number = fake->comm_new(10, 12, 0);
    fake->cart_set(number, 3, sizes, periods, place);
    const topology *t = topology_of(number);
    CHECK_INT(t->dimensions, 3);
    check_slots(&t->dests, 6, ranks, out);
    check_slots(&t->sources, 6, ranks, in);
    CHECK(topology_of(number) == t);
}

static void graphs(void) {
    static const int from[] = {2, 2, 0}, to[] = {1, FAKE_PROC_NULL};
    static const int64_t ranks[] = {2, 2, 0}, other[] = {1, NOBODY}, zeros[3];
    int number = fake->comm_new(0, 4, 0);
    fake->graph_set(number, FAKE_DIST_GRAPH, 3, from, 2, to);
    const topology *t = topology_of(number);
    CHECK_INT(t->dimensions, -1);
    check_slots(&t->sources, 3, ranks, zeros);
    check_slots(&t->dests, 2, other, zeros);
    number = fake->comm_new(3, 4, 0);
    fake->graph_set(number, FAKE_GRAPH, 0, NULL, 3, from);
    t = topology_of(number);
    check_slots(&t->sources, 3, ranks, zeros);
    check_slots(&t->dests, 3, ranks, zeros);
    number = fake->comm_new(3, 4, 0);
    fake->graph_set(number, FAKE_DIST_GRAPH, 0, NULL, 0, NULL);
    t = topology_of(number);
    CHECK_INT(t->sources.number, 0);
    CHECK_INT(t->dests.number, 0);
    CHECK(comm_find_any(FIXTURE_RANK0)->topology == NULL);
}

static int shift(int64_t comm, int64_t direction, int64_t disp, int64_t *rank) {
    return mpixla_comm_shift(comm, (const int64_t[]){direction, disp}, 2, rank);
}

static void shifts(void) {
    static const int sizes[] = {3, 4}, periods[] = {0, 1}, place[] = {1, 3};
    static const struct {
        int64_t direction, disp, rank;
    } rows[] = {{0, 1, 11},
                {0, -1, 3},
                {0, 2, NOBODY},
                {0, -2, NOBODY},
                {0, 0, 7},
                {1, 1, 4},
                {1, -1, 6},
                {1, 4, 7},
                {1, -4, 7},
                {1, 5, 4},
                {1, -7, 4},
                {0, INT64_MAX, NOBODY},
                {0, INT64_MIN, NOBODY},
                {1, INT64_MAX, 6},
                {1, INT64_MIN, 7}};
    int number = fake->comm_new(7, 12, 0);
    fake->cart_set(number, 2, sizes, periods, place);
    int64_t grid = registered(number), rank = -9;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        CHECK_INT(shift(grid, rows[i].direction, rows[i].disp, &rank), 0);
        CHECK_INT(rank, rows[i].rank);
    }
    CHECK_INT(shift(grid, 2, 1, &rank), -1);
    CHECK_STR(mpixla_last_error(),
              "a shift has direction 2, but communicator 'new' has 2 dimensions, which count from 0");
    CHECK_INT(shift(grid, -1, 1, &rank), -1);
    /* Several steps: around a corner, and beyond a wall whatever comes next. */
    static const struct {
        int64_t steps[4], size, rank;
    } far[] = {{{0}, 0, 7},           {{0, -1, 1, 1}, 4, 0},     {{1, 1, 0, -1}, 4, 0},
               {{0, 1, 1, -2}, 4, 9}, {{0, 2, 1, 1}, 4, NOBODY}, {{1, 1, 0, 2}, 4, NOBODY}};
    for (size_t i = 0; i < sizeof far / sizeof far[0]; i++) {
        CHECK_INT(mpixla_comm_shift(grid, far[i].steps, far[i].size, &rank), 0);
        CHECK_INT(rank, far[i].rank);
    }
    CHECK_INT(mpixla_comm_shift(grid, (const int64_t[]){1, 1, 1, 2}, 4, &rank), -1);
    CHECK_STR(mpixla_last_error(), "a shift has direction 1 twice; give the sum of both");
    CHECK_INT(mpixla_comm_shift(grid, (const int64_t[]){1, 1, 0}, 3, &rank), -1);
    CHECK_STR(mpixla_last_error(), "a shift has pairs of numbers, at most 64 numbers in all, but this one has 3");
    CHECK_INT(mpixla_comm_shift(grid, (const int64_t[]){1}, -2, &rank), -1);
    CHECK_INT(mpixla_comm_shift(grid, (const int64_t[]){1}, 66, &rank), -1);
    /* Without a grid: a ring. */
    for (int64_t disp = -9; disp < 10; disp++) {
        CHECK_INT(shift(FIXTURE_RANK2, 0, disp, &rank), 0);
        CHECK_INT(rank, (2 + disp + 4 * FIXTURE_SIZE) % FIXTURE_SIZE);
    }
    CHECK_INT(shift(FIXTURE_RANK2, 1, 1, &rank), -1);
    CHECK_STR(mpixla_last_error(),
              "a shift has direction 1, but communicator 'rank2' is not Cartesian: its ranks are one ring, whose "
              "direction is 0");
    CHECK_INT(shift(999, 0, 1, &rank), -1);
    CHECK_IN(mpixla_last_error(), "communicator number 999 is not registered");
}

static void tells_of_errors(void) {
    static const int numbers[] = {4, 1, 1};
    static const struct {
        const char *function;
        int kind;
    } rows[] = {{"MPI_Topo_test", FAKE_CART},
                {"MPI_Cartdim_get", FAKE_CART},
                {"MPI_Cart_get", FAKE_CART},
                {"MPI_Graph_neighbors_count", FAKE_GRAPH},
                {"MPI_Graph_neighbors", FAKE_GRAPH},
                {"MPI_Dist_graph_neighbors_count", FAKE_DIST_GRAPH},
                {"MPI_Dist_graph_neighbors", FAKE_DIST_GRAPH}};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        char sentence[80];
        int number = fake->comm_new(0, 4, 0);
        fake->cart_set(number, 1, numbers, &numbers[1], &numbers[2]);
        fake->graph_set(number, rows[i].kind, 1, numbers, 1, numbers);
        fixture_fail(rows[i].function, 3);
        CHECK_INT(registered(number), -1);
        snprintf(sentence, sizeof sentence, "%s failed on this communicator", rows[i].function);
        CHECK_STR(mpixla_last_error(), sentence);
        fixture_fail(NULL, 0);
        CHECK(registered(number) >= 0);
    }
}

int main(int argc, char **argv) {
    fixture_start(argc, argv);
    grids();
    graphs();
    shifts();
    tells_of_errors();
    return check_failures();
}
