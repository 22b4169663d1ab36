#include "wincount.h"

size_t count_words(const char *text) {
    size_t n = 0;
    int inside = 0;
    for (; *text; text++) {
        int space = *text == ' ' || *text == '\t' || *text == '\n';
        if (!space && !inside)
            n++;
        inside = !space;
    }
    return n;
}
