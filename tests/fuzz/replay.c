/*
 * replay.c - a fuzz target without libFuzzer: each kept input once, in the order of their names.
 *
 *     replay_TARGET FILE|FOLDER...
 *
 * What a target finds ends the process, as it does under libFuzzer; the input's name is the last line then.
 */
#include <dirent.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static unsigned inputs;

static int run_file(const char *path)
{
	FILE *f = fopen(path, "re");
	struct stat st;
	uint8_t *data;

	if (!f || fstat(fileno(f), &st)) {
		perror(path);
		return -1;
	}
	/* Exactly as long as the input, so that a sanitizer sees a byte too many. */
	data = malloc(st.st_size ? (size_t)st.st_size : 1);
	if (!data || fread(data, 1, (size_t)st.st_size, f) != (size_t)st.st_size) {
		perror(path);
		return -1;
	}
	fclose(f);
	printf("# %s\n", path);
	fflush(stdout);
	LLVMFuzzerTestOneInput(data, (size_t)st.st_size);
	free(data);
	inputs++;
	return 0;
}

static int run_folder(const char *path)
{
	struct dirent **entry;
	int n = scandir(path, &entry, NULL, alphasort), rc = 0;

	if (n < 0) {
		perror(path);
		return -1;
	}
	for (int i = 0; i < n; i++) {
		char *name = NULL;

		if (!rc && entry[i]->d_name[0] != '.' &&
		    asprintf(&name, "%s/%s", path, entry[i]->d_name) > 0)
			rc = run_file(name);
		free(name);
		free(entry[i]);
	}
	free(entry);
	return rc;
}

int main(int argc, char **argv)
{
	struct stat st;
	int rc = 0;

	for (int i = 1; i < argc && !rc; i++)
		rc = stat(argv[i], &st) == 0 && S_ISDIR(st.st_mode) ? run_folder(argv[i])
								    : run_file(argv[i]);
	printf("1..1\n%s 1 - %u kept inputs\n", rc || !inputs ? "not ok" : "ok", inputs);
	return rc || !inputs;
}
