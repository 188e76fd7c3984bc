/*
 * cold - what memory itself costs after a rest: where a host takes idle pages of a virtual machine away, the first
 * touch of each brings it back.
 *
 *   cold SECONDS
 *
 * Touches PAGES pages of its own one after another, rests, and touches them again. Prints "before USEC after USEC".
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "tests/bench/measure.h"

#define PAGES 1024u
#define PAGE  4096u

/* A line of each page, not the same in each: those of one set would push each other out of the caches. */
static double touch(volatile uint8_t *mem)
{
	double began = now_usec();

	for (unsigned i = 0; i < PAGES; i++)
		mem[i * PAGE + i % 64 * 64]++;
	return now_usec() - began;
}

int main(int argc, char **argv)
{
	double rest = argc == 2 ? atof(argv[1]) : 0, before;
	uint8_t *mem = mmap(NULL, PAGES * PAGE, PROT_READ | PROT_WRITE,
			    MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);

	if (rest <= 0 || mem == MAP_FAILED) {
		fputs("usage: cold SECONDS\n", stderr);
		return 2;
	}
	touch(mem);
	before = touch(mem);
	usleep((useconds_t)(rest * 1e6));
	printf("before %.1f after %.1f\n", before, touch(mem));
	return 0;
}
