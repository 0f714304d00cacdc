/* The records of a timeline's file, with all that this process has for it at this moment. */
#ifndef MPIXLA_TEST_RECORDS_H
#define MPIXLA_TEST_RECORDS_H

#include "watch/timeline.h"

/* What is read is valid until the next file is. */
typedef struct records {
    const timeline_header *header; /* NULL: there is no such file */
    const timeline_record *all;    /* of which the last may be places that have never been taken */
    size_t number;                 /* of all */
} records;

records records_read(const char *path);

/* How many there are of this kind. */
int records_count(const records *r, uint32_t kind);

/* The last one of this kind, which has this number unless that is -1. One of zeros: there is none. */
const timeline_record *records_last(const records *r, uint32_t kind, int64_t number);

/* The parts of a list or a text put together, until the next call; "" for what there is none of. */
const char *records_parts(const records *r, uint32_t kind, uint32_t number, size_t *bytes);
const char *records_text(const records *r, uint32_t number);

#endif
