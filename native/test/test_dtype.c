#include "base/error.h"
#include "check.h"
#include "mpi/dtype.h"
#include "xla/xla_ffi.h"

static void finds_nothing_before_it_is_bound(void) {
    CHECK(dtype_find(FFI_F32) == NULL);
    CHECK_STR(error_get(), "XLA's element type number 11 has no MPI datatype bound to it");
}

static void binds_by_name(void) {
    CHECK_INT(mpixla_datatype_bind("MPI_FLOAT", 1234), 0);
    const dtype_entry *entry = dtype_find(FFI_F32);
    CHECK(entry != NULL);
    if (!entry) return;
    CHECK_INT(entry->handle, 1234);
    CHECK_STR(entry->row->name, "float32");
    CHECK_STR(entry->row->mpi_name, "MPI_FLOAT");
    CHECK_INT(entry->row->itemsize, 4);
    CHECK(dtype_find(FFI_F64) == NULL);
    CHECK_INT(mpixla_datatype_bind("MPI_BOGUS", 1), -1);
    CHECK_IN(error_get(), "MPI_BOGUS");
}

/* The small floats travel as unsigned integers. */
static void binds_all_rows_of_a_name(void) {
    CHECK_INT(mpixla_datatype_bind("MPI_UINT8_T", 8), 0);
    CHECK_INT(mpixla_datatype_bind("MPI_UINT16_T", 16), 0);
    static const int bytes[] = {FFI_U8,         FFI_F8E5M2, FFI_F8E4M3FN, FFI_F8E4M3B11FNUZ, FFI_F8E5M2FNUZ,
                                FFI_F8E4M3FNUZ, FFI_F8E4M3, FFI_F8E3M4,   FFI_F8E8M0FNU},
                     pairs[] = {FFI_U16, FFI_F16, FFI_BF16};
    for (size_t i = 0; i < sizeof bytes / sizeof bytes[0]; i++)
        CHECK(dtype_find(bytes[i]) && dtype_find(bytes[i])->handle == 8 && dtype_find(bytes[i])->row->itemsize == 1);
    for (size_t i = 0; i < sizeof pairs / sizeof pairs[0]; i++)
        CHECK(dtype_find(pairs[i]) && dtype_find(pairs[i])->handle == 16 && dtype_find(pairs[i])->row->itemsize == 2);
    CHECK_STR(dtype_find(FFI_BF16)->row->name, "bfloat16");
}

static void knows_no_other_number(void) {
    static const int others[] = {-1, 0, FFI_TOKEN, 63, 64, 1 << 30};
    for (size_t i = 0; i < sizeof others / sizeof others[0]; i++) CHECK(dtype_find(others[i]) == NULL);
}

/* What the front end reads: sizes that agree with the names, and each name once. */
static void has_a_table(void) {
    size_t count = 0, row_size = 0;
    const mpixla_dtype_row *rows = mpixla_dtype_table(&count, &row_size);
    CHECK_INT(row_size, sizeof *rows);
    CHECK(MPIXLA_NEXT_ROW(mpixla_dtype_row, rows, row_size) == &rows[1]);
    CHECK_INT(count, 23);
    for (size_t i = 0; i < count; i++) {
        int bits = 8;
        if (strncmp(rows[i].name, "bool", 4) != 0 && strncmp(rows[i].name, "float8", 6) != 0)
            CHECK_INT(sscanf(rows[i].name, "%*[a-z]%d", &bits), 1);
        CHECK_INT(rows[i].itemsize * 8, bits);
        CHECK_IN("bool integer float complex bytes", rows[i].kind);
        for (size_t j = 0; j < i; j++) CHECK(strcmp(rows[i].name, rows[j].name) != 0);
    }
}

int main(void) {
    finds_nothing_before_it_is_bound();
    binds_by_name();
    binds_all_rows_of_a_name();
    knows_no_other_number();
    has_a_table();
    return check_failures();
}
