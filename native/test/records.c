#include "records.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { PARTS_BYTES = 1 << 16 };

records records_read(const char *path) {
    static char *data;
    struct stat facts;
    timelines_flush();
    free(data);
    data = NULL;
    FILE *file = fopen(path, "rb");
    if (!file) return (records){.header = NULL};
    size_t bytes = fstat(fileno(file), &facts) == 0 ? (size_t)facts.st_size : 0;
    data = calloc(1, bytes + TIMELINE_HEADER_BYTES);
    size_t got = data ? fread(data, 1, bytes, file) : 0;
    (void)fclose(file);
    if (!data) return (records){.header = NULL};
    return (records){.header = (const timeline_header *)data,
                     .all = (const timeline_record *)(data + TIMELINE_HEADER_BYTES),
                     .number = got < TIMELINE_HEADER_BYTES ? 0 : (got - TIMELINE_HEADER_BYTES) / TIMELINE_RECORD_BYTES};
}

int records_count(const records *r, uint32_t kind) {
    int count = 0;
    for (size_t i = 0; i < r->number; i++) count += r->all[i].kind == kind;
    return count;
}

const timeline_record *records_last(const records *r, uint32_t kind, int64_t number) {
    static const timeline_record none;
    for (size_t i = r->number; i-- > 0;)
        if (r->all[i].kind == kind && (number < 0 || r->all[i].number == number)) return &r->all[i];
    return &none;
}

const char *records_parts(const records *r, uint32_t kind, uint32_t number, size_t *bytes) {
    static char parts[PARTS_BYTES + 1];
    size_t used = 0;
    for (size_t i = 0; i < r->number; i++) {
        const timeline_part *part = &r->all[i].of.part;
        if (r->all[i].kind != kind || r->all[i].number != number || used + part->used > PARTS_BYTES) continue;
        memcpy(parts + used, part->bytes, part->used);
        used += part->used;
    }
    parts[used] = '\0';
    if (bytes) *bytes = used;
    return parts;
}

const char *records_text(const records *r, uint32_t number) {
    return records_parts(r, TIMELINE_TEXT, number, NULL);
}
