/* What each handler of libmpixla takes and gives, as a table in Markdown. It needs no MPI. */
#include <mpixla.h>
#include <stdio.h>

static const char *const whose[] = {
    [MPIXLA_EVERYWHERE] = "",
    [MPIXLA_ON_ROOT] = " (on the root)",
    [MPIXLA_OFF_ROOT] = " (not on the root)",
};

/* Returns whether any rank has it. */
static int say(const char *before, const char *what, mpixla_where where) {
    if (where == MPIXLA_NOWHERE) return 0;
    printf("%s%s%s", before, what, whose[where]);
    return 1;
}

static void say_row(const mpixla_op_row *row, const char *send, const char *recv) {
    size_t attributes;
    const char *const *names = mpixla_attribute_table(&attributes);
    printf("| `mpixla_%s` | ", row->name);
    int some = say("", send, row->send);
    say(some ? ", " : "", "template", row->template_);
    printf(" | ");
    say("", recv, row->recv);
    printf("%s |", row->in_place ? ", in place" : "");
    for (size_t i = 0; i < attributes; i++)
        if (row->attributes >> i & 1) printf(" `%s`", names[i]);
    printf(" |\n");
}

int main(void) {
    size_t rows;
    printf("| target | operands | results | attributes |\n|---|---|---|---|\n");
    const mpixla_op_row *row = mpixla_op_table(&rows);
    for (; rows > 0; row++, rows--)
        say_row(row, row->request == MPIXLA_WAITS ? "id" : "send", row->request == MPIXLA_STARTS ? "id" : "receive");
    return 0;
}
