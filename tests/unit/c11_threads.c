/* SPDX-License-Identifier: MIT
 *
 * c11_threads: threads, mutexes and conditions of C11 by those of POSIX, which thread sanitizer knows; it does not know
 * those of C11, which librdkafka uses. Linked into builds with SAN=thread only. The types are the same in glibc.
 */
#include <errno.h>
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <threads.h>

_Static_assert(sizeof(mtx_t) == sizeof(pthread_mutex_t) && sizeof(cnd_t) == sizeof(pthread_cond_t), "glibc");

struct start {
	thrd_start_t function;
	void *arg;
};

static void *run(void *start)
{
	struct start s = *(struct start *)start;
	free(start);
	return (void *)(intptr_t)s.function(s.arg);
}

static int result(int r)
{
	return r == 0 ? thrd_success : r == EBUSY ? thrd_busy : r == ETIMEDOUT ? thrd_timedout : thrd_error;
}

int thrd_create(thrd_t *thread, thrd_start_t function, void *arg)
{
	struct start *s = malloc(sizeof(*s));
	if (s == NULL)
		return thrd_nomem;
	*s = (struct start){function, arg};
	return result(pthread_create(thread, NULL, run, s));
}

int thrd_join(thrd_t thread, int *code)
{
	void *value;
	int r = pthread_join(thread, &value);
	if (code != NULL)
		*code = (int)(intptr_t)value;
	return result(r);
}

int mtx_init(mtx_t *m, int type)
{
	pthread_mutexattr_t attr;
	pthread_mutexattr_init(&attr);
	if (type & mtx_recursive)
		pthread_mutexattr_settype(&attr, PTHREAD_MUTEX_RECURSIVE);
	int r = pthread_mutex_init((pthread_mutex_t *)m, &attr);
	pthread_mutexattr_destroy(&attr);
	return result(r);
}

int mtx_lock(mtx_t *m)
{
	return result(pthread_mutex_lock((pthread_mutex_t *)m));
}

int mtx_trylock(mtx_t *m)
{
	return result(pthread_mutex_trylock((pthread_mutex_t *)m));
}

int mtx_unlock(mtx_t *m)
{
	return result(pthread_mutex_unlock((pthread_mutex_t *)m));
}

void mtx_destroy(mtx_t *m)
{
	pthread_mutex_destroy((pthread_mutex_t *)m);
}

int cnd_init(cnd_t *c)
{
	return result(pthread_cond_init((pthread_cond_t *)c, NULL));
}

int cnd_signal(cnd_t *c)
{
	return result(pthread_cond_signal((pthread_cond_t *)c));
}

int cnd_broadcast(cnd_t *c)
{
	return result(pthread_cond_broadcast((pthread_cond_t *)c));
}

int cnd_wait(cnd_t *c, mtx_t *m)
{
	return result(pthread_cond_wait((pthread_cond_t *)c, (pthread_mutex_t *)m));
}

int cnd_timedwait(cnd_t *restrict c, mtx_t *restrict m, const struct timespec *restrict until)
{
	return result(pthread_cond_timedwait((pthread_cond_t *)c, (pthread_mutex_t *)m, until));
}

void cnd_destroy(cnd_t *c)
{
	pthread_cond_destroy((pthread_cond_t *)c);
}
