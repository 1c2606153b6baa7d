# SPDX-License-Identifier: MIT
# millrace. `make help` lists what can be made.

SAN    ?=
ARCH   ?=
B      := build$(if $(ARCH),/$(ARCH))$(if $(SAN),/san)
PYTHON ?= /usr/bin/python3
JOBS   ?= $(shell nproc)

# Where `make install` puts things. Only a PREFIX of /usr means the system's /etc.
PREFIX      ?= /usr/local
bindir      ?= $(PREFIX)/bin
sbindir     ?= $(PREFIX)/sbin
mandir      ?= $(PREFIX)/share/man
docdir      ?= $(PREFIX)/share/doc/millrace
sysconfdir  ?= $(if $(filter /usr,$(PREFIX)),,$(PREFIX))/etc
unitdir     ?= $(if $(filter /usr,$(PREFIX)),,$(PREFIX))/lib/systemd/system
runstatedir ?= /run
WHERE       := $(foreach v,B DESTDIR PREFIX bindir sbindir mandir docdir sysconfdir unitdir runstatedir,$v='$($v)')

VERSION := 0.1.0
DEB_VERSION ?= $(VERSION)
Q       := $(if $(V),,@)# make V=1 shows the commands

# make ARCH=arm64 builds for another architecture in build/arm64, against a root that tools/sysroot unpacks (2 minutes, once).
# CROSS_COMPILE= and SYSROOT= take a compiler and a root of your own.
ifneq ($(ARCH),)
ifeq ($(CROSS_COMPILE),)
CROSS_COMPILE := $(shell dpkg-architecture -f -a$(ARCH) -qDEB_HOST_GNU_TYPE 2>/dev/null)-
endif
ifeq ($(SYSROOT),)
SYSROOT := $(CURDIR)/build/sysroot/$(ARCH)
include $(SYSROOT)/ready.mk
$(SYSROOT)/ready.mk: tools/sysroot
	tools/sysroot $(ARCH) $(SYSROOT)
endif
endif
ifeq ($(origin CC),default)
CC := $(CROSS_COMPILE)gcc
endif
ifeq ($(origin AR),default)
AR := $(CROSS_COMPILE)ar
endif
PKG_CONFIG := pkg-config
ifneq ($(SYSROOT),)
PKG_CONFIG := PKG_CONFIG_SYSROOT_DIR=$(SYSROOT) \
	PKG_CONFIG_LIBDIR=$(SYSROOT)/usr/lib/$(shell $(CC) -dumpmachine)/pkgconfig:$(SYSROOT)/usr/share/pkgconfig pkg-config
RUN  := $(if $(filter $(shell uname -m),$(firstword $(subst -, ,$(CROSS_COMPILE)))),,qemu-$(firstword $(subst -, ,$(CROSS_COMPILE)))-static -L $(SYSROOT))
endif

WARN    := -Wall -Wextra -Wshadow -Wstrict-prototypes -Wmissing-prototypes -Wswitch-enum -Wvla $(if $(CI),$(if $(SAN),,-Werror))
# char is signed everywhere, as on x86: what was tested there is what runs on arm64.
# The objects do not depend on where they were made: the same source gives the same package.
HARDEN  := -ffile-prefix-map=$(CURDIR)=. -fstack-protector-strong -fPIE $(if $(SAN),,-D_FORTIFY_SOURCE=2)
CFLAGS  ?= -O3 -g
override CFLAGS += $(SYSROOT:%=--sysroot=%) -std=gnu11 $(WARN) -fno-common -fno-strict-aliasing -fsigned-char $(HARDEN) $(if $(SAN),-fsanitize=$(SAN) -fno-omit-frame-pointer -O1)
override CPPFLAGS += -D_GNU_SOURCE -DMILLRACE_VERSION='"$(VERSION)"' $(if $(HAS_KAFKA),-DMILLRACE_KAFKA) $(if $(HAS_PCAP),-DMILLRACE_PCAP) -Iinclude
override LDFLAGS += $(SYSROOT:%=--sysroot=%) -pie -Wl,-z,relro,-z,now -Wl,--as-needed $(if $(SAN),-fsanitize=$(SAN))

# What may be absent. auto (default): built in when the library is there; 1: must be there; 0: left out.
KAFKA     ?= auto
HAS_KAFKA := $(if $(filter auto,$(KAFKA)),$(shell $(PKG_CONFIG) --exists rdkafka && echo 1),$(filter 1,$(KAFKA)))
PCAP      ?= auto
HAS_PCAP  := $(if $(filter auto,$(PCAP)),$(shell $(PKG_CONFIG) --exists libpcap && echo 1),$(filter 1,$(PCAP)))

LIBS          := -lev -lyaml -lxxhash -lcares -lmicrohttpd -lcap -lseccomp -lm -lpthread$(if $(HAS_KAFKA), -lrdkafka)$(if $(HAS_PCAP), -lpcap)
LIBS_replay   := -lpcap
LIBS_kafka    := -lrdkafka -lpthread
LIBS_check    := $(shell $(PKG_CONFIG) --libs check 2>/dev/null)

PROGRAMS := millrace millracectl millrace-replay millrace-sink $(if $(HAS_KAFKA),millrace-kafka)
ABSENT   := $(if $(HAS_KAFKA),,src/output/kafka%) $(if $(HAS_PCAP),,src/input/capture_pcap.c src/input/ring.c src/input/tap_%)
LIB_SRC  := $(sort $(filter-out $(ABSENT),$(wildcard src/*/*.c)))
LIB_OBJ  := $(LIB_SRC:%.c=$B/obj/%.o)
TESTS    := $(sort $(filter-out $(if $(HAS_KAFKA),,tests/unit/test_kafka%) $(if $(HAS_PCAP),,%test_capture.c %test_ring.c),$(wildcard tests/unit/test_*.c)))
FUZZERS  := $(sort $(wildcard tests/fuzz/fuzz_*.c))
BENCHES  := $(sort $(filter-out $(if $(HAS_KAFKA),,%floor_kafka.c) $(if $(HAS_PCAP),,%floor_pcap.c),$(wildcard tests/bench/*.c)))

# DPDK=auto|1|0 likewise. Only the libraries that are called are linked (--as-needed; which they are differs between
# releases): they cost an idle worker 0.6 MiB (measured: RSS 2.4 to 3.0 MiB) and the start 0.3 ms; drivers are loaded by
# the EAL when an input asks for DPDK.
DPDK     ?= auto
HAS_DPDK := $(if $(filter auto,$(DPDK)),$(shell $(PKG_CONFIG) --exists libdpdk && echo 1),$(filter 1,$(DPDK)))
ifneq ($(HAS_DPDK),)
override CPPFLAGS += -DMILLRACE_DPDK
DPDK_CPPFLAGS := $(patsubst -I%,-isystem %,$(shell $(PKG_CONFIG) --cflags libdpdk))
LIBS     += $(filter -lrte_%,$(shell $(PKG_CONFIG) --libs libdpdk))
DPDK_SENDER := $(if $(HAS_PCAP),$B/tests/dpdk_ring_sender)
else
LIB_OBJ  := $(filter-out $B/obj/src/input/dpdk%,$(LIB_OBJ))
TESTS    := $(filter-out %test_rss.c %test_dpdk_args.c %test_dpdk_ring.c,$(TESTS))
endif

.PHONY: all deps run check check-unit check-pure check-fuzz check-integ check-threads test soak bench bench-packets bench-seed fuzz lint install uninstall deb image docs clean help
.SECONDARY:

all: $(PROGRAMS:%=$B/%) $B/fastcapa $B/docs $B/tests/fail_nth.so $(DPDK_SENDER) ## build all programs into build/

deps: ## install what is missing (Debian packages; needs root)
	@tools/deps

run: deps ## show the main job: a relay with 2 workers, 3 backends, live numbers (DEMO_SECONDS=10 ends by itself)
	@$(MAKE) -s -j$(JOBS) all
	@tools/demo

test: deps ## install what is missing, build, pass every test
	@$(MAKE) -j$(JOBS) all check-build
	@$(MAKE) check
	@$(MAKE) -j$(JOBS) SAN=address,undefined all check-build
	@$(MAKE) SAN=address,undefined check-unit check-fuzz
	@$(MAKE) check-integ

check: lint check-unit check-fuzz ## unit tests, replay of the fuzzers' corpora, lint

# What needs nothing of the kernel that qemu-user has not: these run for another architecture, too.
PURE := coalesce conf conf_args conf_diff conf_limits conf_map ctl_hash drops fastcapa hash lines packet_flow packet_frame \
	packet_pcap packet_pcapng prometheus queue rss shards sheet stats_text text
check-pure: $(PURE:%=$B/tests/test_%) check-fuzz ## unit tests without system calls, and corpora; for make ARCH= by qemu-user
	@for t in $(PURE:%=$B/tests/test_%); do echo "$$t"; CK_TIMEOUT_MULTIPLIER=20 $(RUN) $$t || exit 1; done

check-build: $(TESTS:tests/unit/%.c=$B/tests/%) $(FUZZERS:tests/fuzz/%.c=$B/tests/%)

check-unit: $(TESTS:tests/unit/%.c=$B/tests/%)
	@for t in $^; do echo "$$t"; $(RUN) $$t || exit 1; done

check-fuzz: $(FUZZERS:tests/fuzz/%.c=$B/tests/%)
	@for t in $^; do n=$${t##*/fuzz_}; $(RUN) $$t tests/fuzz/corpus/$$n || exit 1; done

check-integ: all ## the real program against real peers
	@$(PYTHON) -m pytest -q -n $(JOBS) --dist load -m 'not soak' tests/integ

# What has threads: the Kafka output's, librdkafka's, the resolver's.
THREADED := $(if $(HAS_KAFKA),kafka kafka_again kafka_handover) resolve
check-threads: ## unit tests of what has threads, under thread sanitizer
	@$(MAKE) -j$(JOBS) B=build/tsan SAN=thread $(THREADED:%=build/tsan/tests/test_%)
	@for t in $(THREADED); do echo "$$t"; CK_TIMEOUT_MULTIPLIER=20 \
		TSAN_OPTIONS="suppressions=tests/unit/tsan.supp report_thread_leaks=0" build/tsan/tests/test_$$t || exit 1; done

soak: all check-threads ## the sizes that the issues state
	@$(PYTHON) -m pytest -q -m soak tests/integ

bench: all $(BENCHES:tests/bench/%.c=$B/tests/%) ## CPU per line beside the floor, as ratios
	@$(PYTHON) tests/bench/bench.py

bench-packets: all $(BENCHES:tests/bench/%.c=$B/tests/%) ## CPU per packet beside the floors, as ratios (root)
	@$(PYTHON) tests/bench/packet_ratio.py

bench-seed: all ## ten minutes of 211,000 packets/s of 650 bytes to a real broker, none lost (root; SEED_SECONDS=600)
	@SEED_SECONDS=$${SEED_SECONDS:-600} $(PYTHON) -m pytest -q -s -rs tests/integ/test_63_seed_figure.py

fuzz: ## run each fuzzer for FUZZ_SECONDS (60), from its corpus; what it finds lies in build/fuzz
	@$(MAKE) -j$(JOBS) CC=clang B=build/fuzz SAN=fuzzer-no-link,address,undefined FUZZING=1 $(FUZZERS:tests/fuzz/%.c=build/fuzz/tests/%)
	@for f in $(FUZZERS:tests/fuzz/fuzz_%.c=%); do echo "$$f"; mkdir -p build/fuzz/found/$$f; \
		build/fuzz/tests/fuzz_$$f -max_total_time=$${FUZZ_SECONDS:-60} -print_final_stats=1 -verbosity=0 \
		-artifact_prefix=build/fuzz/$$f- build/fuzz/found/$$f tests/fuzz/corpus/$$f || exit 1; done

lint: $B/docs ## layers, file sizes, tables and documentation agree
	@$(PYTHON) tools/lint

docs: $B/docs ## renew the documents that come from the tables
	$B/docs sample > etc/millrace.yaml
	$B/docs counters > docs/counters.md
	$B/docs man etc/man/millrace.8.in > etc/man/millrace.8

install: all ## install everything below DESTDIR and PREFIX; edited configurations stay
	@$(WHERE) tools/install install

uninstall: ## remove what install put there; edited configurations stay
	@$(WHERE) tools/install uninstall

deb: all ## make the Debian package build/deb/millrace_VERSION-1_ARCH.deb (DEB_VERSION=)
	@B=$B ARCH=$(ARCH) SYSROOT=$(SYSROOT) tools/deb $(DEB_VERSION)

image: deb ## make OCI images in build/image: millrace, and one with DPDK's drivers (needs mmdebstrap)
	@tools/image $B/deb/millrace_$(DEB_VERSION)-1_*.deb $B/image

clean: ## remove build/
	rm -rf build

help: ## this list
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1\t\2/p' Makefile | expand -t 22

$B/obj/%.o: %.c
	@mkdir -p $(@D)
	@echo "CC $@"
	$Q$(CC) $(CPPFLAGS) $(CFLAGS) -MMD -MP -c -o $@ $<

$B/libmillrace.a: $(LIB_OBJ)
	@rm -f $@
	$Q$(AR) rcs $@ $^

$B/millrace: $B/obj/src/main.o $B/libmillrace.a
	$Q$(CC) $(LDFLAGS) -o $@ $^ $(LIBS)

# Called so, millrace takes Fastcapa's command line.
$B/fastcapa: $B/millrace
	ln -sf millrace $@

# A tool is tools/millrace-NAME.c (or millracectl.c) and tools/NAME_*.c.
define tool
$B/$1: $(patsubst %.c,$B/obj/%.o,tools/$1.c $(sort $(wildcard tools/$2_*.c))) $B/libmillrace.a
	$$Q$$(CC) $$(LDFLAGS) -o $$@ $$^ $$(LIBS) $$(LIBS_$2)
endef
$(eval $(call tool,millracectl,ctl))
$(eval $(call tool,millrace-replay,replay))
$(eval $(call tool,millrace-sink,sink))
$(eval $(call tool,millrace-kafka,kafka))

# Of the tables alone: make lint needs it, and is to say what it has to say before the whole is built.
$B/docs: $B/obj/tools/docs.o $(filter $B/obj/src/base/% $B/obj/src/conf/%,$(LIB_OBJ))
	$Q$(CC) $(LDFLAGS) -o $@ $^ $(LIBS)

$B/tests/test_%: $B/obj/tests/unit/test_%.o $(if $(filter thread,$(SAN)),$B/obj/tests/unit/c11_threads.o) $B/libmillrace.a
	@mkdir -p $(@D)
	$Q$(CC) $(LDFLAGS) -o $@ $^ $(LIBS_check) $(LIBS) -lpthread

$B/tests/fuzz_%: $B/obj/tests/fuzz/fuzz_%.o $(if $(FUZZING),,$B/obj/tests/fuzz/replay_main.o) $B/libmillrace.a
	@mkdir -p $(@D)
	$Q$(CC) $(LDFLAGS) $(FUZZING:1=-fsanitize=fuzzer) -o $@ $^ $(LIBS)

$(BENCHES:tests/bench/%.c=$B/tests/%): $B/tests/%: $B/obj/tests/bench/%.o $B/libmillrace.a
	@mkdir -p $(@D)
	$Q$(CC) $(LDFLAGS) -o $@ $^ $(LIBS) -lpthread

$B/tests/dpdk_ring_sender: $B/obj/tests/integ/dpdk_ring_sender.o
	@mkdir -p $(@D)
	$(CC) $(LDFLAGS) -o $@ $^ -lpcap $(LIBS)

# Calls are made to fail with it, of a program that is not sanitized.
$B/tests/fail_nth.so: tests/integ/fail_nth.c
	@mkdir -p $(@D)
	$Q$(CC) $(SYSROOT:%=--sysroot=%) -std=gnu11 -D_GNU_SOURCE -O2 -g -fPIC -shared -o $@ $< -ldl

$B/obj/tests/integ/dpdk%.o $B/obj/src/input/dpdk%.o $B/obj/tests/unit/test_rss.o $B/obj/tests/unit/test_dpdk%.o: CPPFLAGS += $(DPDK_CPPFLAGS)

# the page is part of the program
$B/obj/src/monitor/page.o: src/monitor/page.html

# tests may include a .c of src to reach its static functions
$B/obj/tests/%.o: CPPFLAGS += -Isrc -Isrc/base -Isrc/conf -Isrc/input -Isrc/output -Isrc/stats -Isrc/master -I. \
	-DTEST_DATA='"$(CURDIR)/tests/data"'
$B/obj/tests/%.o: WARN := $(filter-out -Wmissing-prototypes,$(WARN))

-include $(shell find $B/obj -name '*.d' 2>/dev/null)
