/* SPDX-License-Identifier: MIT
 *
 * millrace: arguments → run, check or dump.
 */
#include <conf.h>
#include <input.h>
#include <master.h>
#include <output.h>

#include <stdio.h>
#include <string.h>

static int print_version(void)
{
	const char *kafka = output_kafka_version(), *pcap = input_pcap_version(), *dpdk = input_dpdk_version();
	printf("millrace %s\n", MILLRACE_VERSION);
	printf("kafka: %s\npcap: %s\ndpdk: %s\n", kafka ? kafka : "not built in", pcap ? pcap : "not built in",
	       dpdk ? dpdk : "not built in");
	return 0;
}

static int print_help(void)
{
	struct text t = {0};
	conf_help(&t);
	fputs(t.s ? t.s : "", stdout);
	text_free(&t);
	return 0;
}

/* Of an upgrade: the very text that is, or was, rehearsed. */
static struct conf *load_for_upgrade(const struct conf_args *args, struct conf_errors *errors)
{
	char *bytes = NULL;
	size_t len = 0;
	int r = master_resumes() ? resume_text(args->path, &bytes, &len) : rehearse_text(args->path, &bytes, &len);
	if (r != 0)
		text_add(&errors->text, "%s: cannot be read: %s\n", args->path, strerror(-r));
	struct conf *cf = r == 0 ? conf_load_bytes(args->path, bytes, len, args, errors) : NULL;
	free(bytes);
	return cf;
}

static struct conf *load(const struct conf_args *args)
{
	struct conf_errors errors;
	memset(&errors, 0, sizeof errors);
	bool is_upgrade = args->path && (master_is_rehearsal() || master_resumes());
	struct conf *cf = is_upgrade ? load_for_upgrade(args, &errors) : conf_load(args, &errors);
	if (!cf)
		fputs(errors.text.s ? errors.text.s : "millrace: out of memory\n", stderr);
	text_free(&errors.text);
	return cf;
}

static void warn(const struct conf *cf)
{
	struct text t = {0};
	conf_warnings(cf, &t);
	fputs(t.s ? t.s : "", stderr);
	text_free(&t);
}

/* What the libraries behind inputs and outputs say. */
static bool check_all(const struct conf *cf)
{
	struct text t = {0};
	size_t n = input_check(cf, &t) + output_check(cf, &t);
	fputs(t.s ? t.s : "", stderr);
	text_free(&t);
	return n == 0;
}

/* Before it is known how the start goes, errors are for who started us, too. */
static int open_log(const struct conf *cf, struct err *err)
{
	enum log_target target = conf_log_target(cf);
	int file = target == LOG_TARGET_FILE ? log_file_open(cf->log, err) : -1;
	log_open("master", target, conf_log_level(cf));
	log_turn_to(target, MAX(file, -1));
	log_copy_to_stderr(!log_stderr_is_journal());
	return target == LOG_TARGET_FILE ? MIN(file, 0) : 0;
}

/* Takes the configuration over. */
static int run(struct conf **cf, const struct conf_args *args, char **argv)
{
	struct err err = {""};
	if (master_is_rehearsal())
		return check_all(*cf) ? master_rehearse(*cf) : MASTER_EXIT_ERROR;
	warn(*cf);
	if (open_log(*cf, &err) != 0) {
		fprintf(stderr, "millrace: %s\n", err.text);
		return MASTER_EXIT_ERROR;
	}
	bool is_good = master_resumes() || check_all(*cf); /* the rehearsal has checked it */
	return is_good ? master_run(cf, args, argv) : MASTER_EXIT_ERROR;
}

/* args: NULL when the configuration was not made of them. */
static int with_conf(struct conf *cf, const struct conf_args *args, enum conf_action action, char **argv)
{
	if (!cf)
		return MASTER_EXIT_ERROR;
	int exit_code = 0;
	struct text t = {0};
	switch (action) {
	case CONF_ACTION_CHECK:
		warn(cf);
		if (!check_all(cf)) {
			exit_code = MASTER_EXIT_ERROR;
			break;
		}
		printf("%s: the configuration is good\n", cf->path ? cf->path : "flags");
		break;
	case CONF_ACTION_DUMP:
		conf_dump(cf, &t);
		fputs(t.s ? t.s : "", stdout);
		break;
	case CONF_ACTION_RUN:
	case CONF_ACTION_HELP:
	case CONF_ACTION_VERSION:
		exit_code = run(&cf, args, argv);
		break;
	}
	text_free(&t);
	conf_free(cf);
	return exit_code;
}

static int run_as_fastcapa(int argc, char **argv)
{
	struct conf_errors errors;
	struct text t = {0};
	enum conf_action action;
	struct conf *cf = conf_load_fastcapa(argc, argv, &action, &errors);
	if (action == CONF_ACTION_HELP) {
		conf_fastcapa_help(&t);
		fputs(t.s ? t.s : "", stdout);
	} else if (action == CONF_ACTION_VERSION) {
		print_version();
	} else if (!cf) {
		fputs(errors.text.s ? errors.text.s : "fastcapa: out of memory\n", stderr);
	}
	text_free(&t);
	text_free(&errors.text);
	return action == CONF_ACTION_HELP || action == CONF_ACTION_VERSION ? 0 : with_conf(cf, NULL, action, argv);
}

int main(int argc, char **argv)
{
	master_hold_signals();
	proc_fill_standard();
	if (conf_is_fastcapa(argv[0]))
		return run_as_fastcapa(argc, argv);
	struct conf_args args;
	struct err err = {""};
	memset(&args, 0, sizeof args);
	if (conf_args_parse(&args, argc, argv, &err) != 0) {
		fprintf(stderr, "millrace: %s\n", err.text);
		conf_args_free(&args);
		return MASTER_EXIT_ERROR;
	}
	int exit_code = args.action == CONF_ACTION_HELP      ? print_help()
			: args.action == CONF_ACTION_VERSION ? print_version()
							     : with_conf(load(&args), &args, args.action, argv);
	conf_args_free(&args);
	return exit_code;
}
