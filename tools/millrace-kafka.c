/* SPDX-License-Identifier: MIT
 *
 * millrace-kafka: Kafka for those who try or test millrace. `mock` is a cluster to send to, `read` shows what came.
 */
#include "kafka.h"

#include <librdkafka/rdkafka.h>
#include <string.h>
#include <unistd.h>

void kafka_usage(FILE *to)
{
	fputs("usage: millrace-kafka mock [--brokers 1..3] [--topic NAME:PARTITIONS]... [--control-stdin]\n"
	      "       millrace-kafka read -b BROKERS -t TOPIC [options]\n"
	      "\n"
	      "mock: a Kafka cluster in this process, on ports of the loopback; prints bootstrap.servers=...\n"
	      "  --brokers N      1 to 3 (1)\n"
	      "  --topic T:P      a topic with P partitions; producers make others by naming them (4)\n"
	      "  --control-stdin  takes commands, answers each with ok or error: ...; its end is quit\n"
	      "      errors APIKEY COUNT ERR...  the next COUNT requests of this kind fail, each with an ERR\n"
	      "      clear APIKEY                forget the errors that are left\n"
	      "      down N|all, up N|all        a broker refuses and cuts connections, takes them again\n"
	      "      rtt N|all MS                a broker answers MS milliseconds late\n"
	      "      topic NAME:PARTITIONS       make a topic\n"
	      "      topic-error NAME ERR        what metadata says about a topic; NO_ERROR ends it\n"
	      "      leader NAME PART N|none     move a partition's leader\n"
	      "      quit\n"
	      "\n"
	      "read: a topic to standard output\n"
	      "  -b HOST:PORT,... brokers\n"
	      "  -t TOPIC\n"
	      "  -f pcap          packet and pcap messages as one pcap stream for tshark -r - (default if the first\n"
	      "                   message is one of them)\n"
	      "  -f lines         each message, with a newline if it does not end in one (default otherwise)\n"
	      "  -f raw           the messages' bytes and nothing else\n"
	      "  -o OFFSET        beginning (default), end, or a number, in each partition\n"
	      "  -n COUNT         end after so many messages\n"
	      "  -e               end when the end of each partition is reached\n"
	      "  -p PARTITION     only this one\n"
	      "  -X NAME=VALUE    any property of librdkafka\n",
	      to);
}

void kafka_say(const char *fmt, ...)
{
	static const char who[] = "millrace-kafka: ";
	char line[2048];
	size_t at = sizeof(who) - 1;
	va_list args;
	int n;

	memcpy(line, who, sizeof(who));
	va_start(args, fmt);
	n = vsnprintf(line + at, sizeof(line) - at - 1, fmt, args);
	va_end(args);
	at = MIN(at + (size_t)MAX(n, 0), sizeof(line) - 2);
	line[at++] = '\n';
	if (write(STDERR_FILENO, line, at) == -1)
		return; /* nobody is left to tell */
}

int main(int argc, char **argv)
{
	static const struct {
		const char *name;
		int (*run)(int argc, char **argv);
	} commands[] = { { "mock", kafka_mock_main }, { "read", kafka_read_main } };

	for (size_t i = 0; argc > 1 && i < ARRAY_LEN(commands); i++) {
		if (strcmp(argv[1], commands[i].name) == 0)
			return commands[i].run(argc - 1, argv + 1);
	}
	if (argc == 2 && (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0)) {
		kafka_usage(stdout);
		return 0;
	}
	if (argc == 2 && strcmp(argv[1], "--version") == 0) {
		printf("millrace-kafka with librdkafka %s\n", rd_kafka_version_str());
		return 0;
	}
	kafka_usage(stderr);
	return 1;
}
