#include "mpi/reduction.h"

#include <string.h>

#include "base/error.h"
#include "base/list.h"

static const mpixla_reduction_row rows[] = {
#define MPIXLA_REDUCTION(name, kinds) {name, kinds},
#include "tables/reductions.def"
#undef MPIXLA_REDUCTION
};

enum { ROWS = sizeof rows / sizeof rows[0] };

static struct {
    mpixla_handle handle;
    int bound;
} predefined[ROWS];

static list user_made = {.item_size = sizeof(mpixla_handle), .what = "user-made reductions"};

const mpixla_reduction_row *mpixla_reduction_table(size_t *count) {
    *count = ROWS;
    return rows;
}

int mpixla_reduction_bind(const char *name, mpixla_handle handle) {
    for (int i = 0; i < ROWS; i++) {
        if (strcmp(rows[i].name, name) != 0) continue;
        predefined[i].handle = handle;
        predefined[i].bound = 1;
        return 0;
    }
    return error_set("no row of native/tables/reductions.def is called %s", name);
}

int64_t mpixla_reduction_register(mpixla_handle handle) {
    int64_t id = list_number(&user_made, &handle);
    return id < 0 ? id : id + ROWS;
}

const mpixla_handle *reduction_find(int64_t id) {
    if (id >= 0 && id < ROWS && predefined[id].bound) return &predefined[id].handle;
    const mpixla_handle *handle = id >= ROWS ? list_find(&user_made, id - ROWS) : NULL;
    if (!handle) error_set("reduction number %lld is not registered in this process", (long long)id);
    return handle;
}

int reduction_is_of_pairs(int64_t id) {
    return id >= 0 && id < ROWS && strcmp(rows[id].kinds, "pair") == 0;
}

const char *reduction_name(int64_t id) {
    return id >= 0 && id < ROWS ? rows[id].name : "a user-made reduction";
}
