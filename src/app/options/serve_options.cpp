#include "app/options/feature_options.h"
#include "app/options/model_options.h"
#include "app/options/option_parts.h"

namespace nibble::app {
namespace {

// For the routers of a fleet.
void add_kv_event_flags(Flags flags, KvEventOptions& o) {
  flags.turn("--kv-events,!--no-kv-events", o.on,
             "Publish over ZeroMQ what the prefix cache keeps, for routers that send a request where its prefix is "
             "(docs/serving.md)");
  flags.value("--kv-events-endpoint", o.endpoint, "Where; of replica n the port is n higher").not_empty();
  flags.value("--kv-events-replay-endpoint", o.replay_endpoint,
              "Where past batches can be asked for again; default: nowhere");
  flags.value("--kv-events-topic", o.topic, "Topic of the messages; llm-d wants kv@POD@MODEL");
  add_choice<bool>(flags, "--kv-events-format", {o.maps, {{"arrays", false}, {"maps", true}}},
                   "How an event is written: as vLLM up to mid-2026 does, which llm-d reads, or as it does since");
  flags.value("--kv-events-buffer", o.kept_batches, "Past batches that are kept").whole(1, 1 << 20);
  flags.value("--kv-events-hwm", o.most_unsent, "Most batches that wait for a slow subscriber").whole(1, 1 << 20);
}

}  // namespace

void add_serve_flags(Flags flags, ServeOptions& o) {
  flags.show_defaults(true);
  add_model_name(flags, o.model.model, "; default: the small one that comes with nibble");
  add_revision(flags, o.model.revision);
  flags.value("--served-model-name", o.served_names, "Names that requests may use; default: the model's").not_empty();
  flags.value("--host", o.host, "Address to listen on; 0.0.0.0: all").not_empty();
  flags.value("--port", o.port, "Port to listen on; 0: any free one").whole(0, 65535);
  flags.value("--max-num-seqs", o.max_num_seqs, "Most sequences computed at the same time").whole(1, 1024);
  constexpr std::string_view kOtherwise = ", where a request does not say";
  flags.group(HelpGroup::kSampling);
  add_effort(flags, o.effort, kOtherwise);
  add_sampling(flags, o.sampling, kOtherwise);
  flags.group(HelpGroup::kPerformance);
  add_preset(flags, o.model.settings);
  flags
      .value("--max-waiting", o.max_waiting,
             "Most requests in the queue, besides the running ones; further ones get a 429")
      .whole(1, 1 << 20);
  flags
      .value("--kv-tokens", o.kv_tokens,
             "Tokens that the KV cache holds, of all sequences; 0: one context's, and up to 131,072, with "
             "--backend cuda 524,288, where they fit and the sequences can use them")
      .whole(0, 1 << 30);
  flags
      .value(
          "--kv-cache-memory-bytes,--kv-cache-memory", o.kv_memory_bytes,
          "Bytes of the KV cache of each engine or card, instead of --kv-tokens (2G and the like); 0: --kv-tokens says")
      .whole(0, int64_t{1} << 50);
  flags
      .value("--max-num-partial-prefills", o.max_num_partial_prefills,
             "Most prompts that are read in parts at the same time")
      .whole(1, 1024);
  flags
      .value("--max-long-partial-prefills", o.max_long_partial_prefills,
             "Most long ones among them; 0: no limit of their own")
      .whole(0, 1024);
  flags
      .value("--long-prefill-token-threshold", o.long_prefill_token_threshold,
             "A prompt with more tokens to read is long, and gets at most so many in a step; 0: none is, or with "
             "--max-long-partial-prefills 4 % of the context")
      .whole(0, 1 << 24);
  flags
      .value("--target-itl", o.target_itl,
             "Milliseconds between a stream's tokens that are aimed at while prompts are read; 0: from measured "
             "times, so that streams keep 27 % of their speed")
      .within(0, 60000);
  add_choice<bool>(flags, "--scheduling-policy", {o.by_priority, {{"fcfs", false}, {"priority", true}}},
                   "priority: requests with a lower number in their field priority go first");
  flags.turn("--enable-prefix-caching,!--no-enable-prefix-caching", o.prefix_cache,
             "Do not compute again what a prompt shares with earlier ones (default)");
  flags
      .value("--data-parallel-size", o.replicas,
             "cpu, reference: engines of the same model behind this port, which divide the threads; --max-num-seqs and "
             "--kv-tokens are each one's. A request goes where its prompt is cached, or where less waits")
      .whole(1, 64);
  flags
      .turn("--async-scheduling,!--no-async-scheduling", o.async_scheduling,
            "Begin a step before the last one's tokens are read; default: on cuda")
      .last_counts();
  flags.group(HelpGroup::kCommon);
  flags.value("--api-key", o.api_keys, "Key that clients must give; repeatable").one_value().not_empty();
  flags.value("--ssl-certfile", o.certificate_file, "Certificate chain (PEM): serve HTTPS").not_empty();
  flags.value("--ssl-keyfile", o.key_file, "Its private key (PEM)").not_empty();
  flags.group(HelpGroup::kExpert);
  flags
      .value("--allowed-origin,--allowed-origins", o.allowed_origin,
             "Origin of web pages that may call; * any, empty none")
      .check([](const std::string& origin) {
        return origin.starts_with("[") ? "want one origin, found the list " + origin : std::string();
      });
  add_kv_event_flags(flags, o.kv_events);
  flags.turn("--enable-force-include-usage", o.include_usage,
             "Every stream of chats and completions ends with its usage, asked for or not");
  flags.turn("--headless", o.headless, "With a --node-rank above 0, which serves no port: refuse to serve one");
  flags.value("--http-threads", o.http_threads, "Threads for HTTP").whole(1, 64);
  flags.value("--max-connections", o.max_connections, "Most open connections").whole(1, 1 << 20);
  flags.value("--max-body-bytes", o.max_body_bytes, "Largest request body").whole(1 << 10, 1 << 30);
  flags.value("--max-header-bytes,--h11-max-incomplete-event-size", o.max_header_bytes, "Largest request header")
      .whole(1 << 10, 1 << 20);
  flags.value("--request-timeout", o.request_timeout, "Seconds for a request's body to arrive").whole(1, 3600);
  flags.value("--shutdown-timeout", o.shutdown_timeout, "Seconds that running requests get after SIGTERM")
      .whole(0, 86400);
  flags.turn(
      "--log-requests,--enable-log-requests,!--no-log-requests,!--disable-log-requests,!--no-enable-log-requests",
      o.log_requests, "One line per request on standard error (default)");
  flags.turn("--log-prompts", o.log_prompts, "Log the text of requests too");
  add_choice<LogFormat>(
      flags, "--log-format",
      {o.log_format, {{"auto", LogFormat::kAuto}, {"text", LogFormat::kText}, {"json", LogFormat::kJson}}},
      "Lines on standard error; auto: text on a terminal, elsewhere one JSON object a line");
  flags.group(HelpGroup::kCommon);
  flags.value("--config", o.model.settings.file, "TOML or YAML file (by its name) with settings named like the flags")
      .not_empty();
}

}  // namespace nibble::app
