/* What each handler of libmpixla takes and gives, as the table in mpixla.h. It needs no MPI. */
#include <mpixla.h>
#include <stdio.h>
#include <string.h>

static const char *const whose[] = {
    [MPIXLA_EVERYWHERE] = "",
    [MPIXLA_ON_ROOT] = " @root",
    [MPIXLA_OFF_ROOT] = " @others",
};

/* Says what some rank has, and returns how many characters that were. */
static int say(int before, const char *what, mpixla_where where) {
    if (where == MPIXLA_NOWHERE) return 0;
    return printf("%s%s%s", before ? ", " : "", what, whose[where]);
}

/* Blanks, or a dash if nothing was said. */
static void fill(int said, int width) {
    if (said)
        printf("%*s", width - said, "");
    else
        printf("%-*s", width, "-");
}

static void say_row(const mpixla_op_row *row) {
    printf(" *   %-18s", row->name);
    int said = say(0, row->request == MPIXLA_WAITS ? "id" : "send", row->send);
    said += say(said, "template", row->template_);
    fill(said, 30);
    said = say(0, row->request == MPIXLA_STARTS ? "id" : "receive", row->recv);
    if (row->in_place) said += printf(", in place");
    fill(said, 27);
    said = 0;
    size_t count;
    const char *const *names = mpixla_attribute_table(&count);
    for (size_t i = 0; i < count; i++) {
        int of_all = strcmp(names[i], "comm") == 0 || strcmp(names[i], "packed") == 0 || strcmp(names[i], "site") == 0;
        if (!of_all && (row->attributes & ~row->optional) >> i & 1) said += printf("%s%s", said ? " " : "", names[i]);
    }
    printf("%s\n", said ? "" : "-");
}

int main(void) {
    size_t rows, size;
    printf(" *   %-18s%-30s%-27s%s\n", "operation", "operands", "results", "attributes");
    const mpixla_op_row *row = mpixla_op_table(&rows, &size);
    for (; rows > 0; row = MPIXLA_NEXT_ROW(mpixla_op_row, row, size), rows--) say_row(row);
    return 0;
}
