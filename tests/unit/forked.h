/*
 * forked.h - run something in a child that may abort, crash or never end, and see how it ended.
 */
#ifndef RV_TESTS_UNIT_FORKED_H
#define RV_TESTS_UNIT_FORKED_H

#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <unistd.h>

#define FORKED_SECONDS 5

/**
 * @param fn  what to run; false is a failure
 * @return 0: it returned true; 1: false; a signal's number negated: it died of that (-SIGALRM: it did not end)
 */
static inline int forked(bool (*fn)(void))
{
	int status;
	pid_t pid;

	fflush(stdout);
	fflush(stderr);
	pid = fork();
	if (pid == 0) {
		/* A sanitizer's or cmocka's handlers are not for this. */
		signal(SIGABRT, SIG_DFL);
		signal(SIGALRM, SIG_DFL);
		signal(SIGSEGV, SIG_DFL);
		signal(SIGBUS, SIG_DFL);
		if (!freopen("/dev/null", "w", stderr))
			_exit(2);
		alarm(FORKED_SECONDS);
		_exit(fn() ? 0 : 1);
	}
	if (pid < 0 || waitpid(pid, &status, 0) != pid)
		abort();
	return WIFSIGNALED(status) ? -WTERMSIG(status) : WEXITSTATUS(status);
}

#endif
