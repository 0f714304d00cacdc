/* Whether a text is JSON, and how many objects it has within its outermost brackets. */
#ifndef MPIXLA_TEST_JSON_H
#define MPIXLA_TEST_JSON_H

/* -1: it is none. */
int json_count(const char *text);

/* The contents of a file, until the next call; "" if there is none. */
const char *json_file(const char *path);

#endif
