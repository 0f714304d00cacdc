#include "json.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Each takes the text from where something is to begin, and returns where it ends; NULL if it is not there. */
static const char *value(const char *at, int depth, int *objects);

static const char *blank(const char *at) {
    while (at && (*at == ' ' || *at == '\n' || *at == '\r' || *at == '\t')) at++;
    return at;
}

static const char *string(const char *at) {
    if (*at++ != '"') return NULL;
    while (*at != '"') {
        if ((unsigned char)*at < 0x20) return NULL;
        if (*at == '\\' && *++at == 'u') {
            for (int i = 0; i < 4; i++)
                if (!isxdigit((unsigned char)*++at)) return NULL;
        } else if (*at == '\0') {
            return NULL;
        }
        at++;
    }
    return at + 1;
}

static const char *digits(const char *at) {
    if (!isdigit((unsigned char)*at)) return NULL;
    while (isdigit((unsigned char)*at)) at++;
    return at;
}

static const char *number(const char *at) {
    if (*at == '-') at++;
    if (*at == '0' && isdigit((unsigned char)at[1])) return NULL;
    at = digits(at);
    return at && *at == '.' ? digits(at + 1) : at;
}

static const char *list(const char *at, int depth, int *objects, char end) {
    at = blank(at + 1);
    if (*at == end) return at + 1;
    for (;;) {
        if (end == '}') {
            at = blank(string(at));
            if (!at || *at != ':') return NULL;
            at = blank(at + 1);
        }
        at = blank(value(at, depth + 1, objects));
        if (!at || (*at != ',' && *at != end)) return NULL;
        if (*at == end) return at + 1;
        at = blank(at + 1);
    }
}

static const char *value(const char *at, int depth, int *objects) {
    static const char *const words[] = {"null", "true", "false"};
    if (*at == '{') {
        *objects += depth == 1;
        return list(at, depth, objects, '}');
    }
    if (*at == '[') return list(at, depth, objects, ']');
    if (*at == '"') return string(at);
    for (int i = 0; i < 3; i++)
        if (strncmp(at, words[i], strlen(words[i])) == 0) return at + strlen(words[i]);
    return number(at);
}

int json_count(const char *text) {
    int objects = 0;
    const char *end = blank(value(blank(text), 0, &objects));
    return end && *end == '\0' ? objects : -1;
}

const char *json_file(const char *path) {
    static char *text;
    free(text);
    text = NULL;
    FILE *file = fopen(path, "rb");
    if (!file) return "";
    fseek(file, 0, SEEK_END);
    long bytes = ftell(file);
    rewind(file);
    text = bytes >= 0 ? calloc(1, (size_t)bytes + 1) : NULL;
    if (text) text[fread(text, 1, (size_t)bytes, file)] = '\0';
    fclose(file);
    return text ? text : "";
}
