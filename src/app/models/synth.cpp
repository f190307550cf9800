#include "convert/synth.h"

#include "app/setup/commands.h"
#include "app/setup/gguf_model.h"
#include "app/setup/interrupt.h"
#include "app/setup/loaded_model.h"
#include "app/setup/terminal.h"
#include "base/error.h"
#include "base/thread_pool.h"
#include "text/tokenizer_parts.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <span>
#include <vector>

namespace nibble::app {

namespace {

void synth_gguf(const model::ModelConfig& preset, const SynthOptions& options, ThreadPool& pool, Terminal& terminal) {
  const model::ModelConfig config = options.layers > 0 ? model::truncated(preset, options.layers) : preset;
  std::array<std::vector<std::byte>, 2> bytes;  // by Part
  const convert::TensorSource made = [&](const model::ManifestItem& item) -> std::span<const std::byte> {
    auto& into = bytes[static_cast<size_t>(item.part)];
    into.resize(static_cast<size_t>(item.bytes()));
    convert::fill_synthetic(item, options.seed, {.offset_bytes = 0, .bytes = into}, &pool);
    return into;
  };
  write_gguf_model(config, text::read_tokenizer_json(text::make_o200k_tokenizer_json(), "o200k_harmony"), made,
                   {.destination = options.destination,
                    .part_bytes = options.part_bytes,
                    .pool = &pool,
                    .json = options.output.json},
                   terminal);
}

}  // namespace

int execute(const SynthOptions& options) {
  Terminal terminal(options.output);
  const model::ModelConfig config = model::preset(options.preset);
  ThreadPool pool(thread_count({}));
  const bool named_gguf = options.destination.extension() == ".gguf";
  if (options.format == CheckpointFormat::kGguf || (options.format == CheckpointFormat::kAuto && named_gguf)) {
    synth_gguf(config, options, pool, terminal);
    return kExitOk;
  }
  if (options.part_bytes > 0) throw Error(Code::kInvalidRequest, "--part-bytes: want --format gguf with it");
  const auto start = std::chrono::steady_clock::now();
  int64_t written = 0;
  const Interrupt interrupt(kEndings);
  convert::synth_checkpoint(
      config, options.destination,
      {.seed = options.seed,
       .layers = options.layers,
       .tokenizer_json = text::make_o200k_tokenizer_json(),
       .pool = &pool},
      [&](const convert::SynthProgress& p) {
        interrupt.throw_if_requested();
        written = p.done_bytes;
        terminal.progress("writing",
                          static_cast<double>(p.done_bytes) / static_cast<double>(std::max<int64_t>(p.total_bytes, 1)),
                          fmt::format("{} of {} ({})", format_bytes(static_cast<double>(p.done_bytes)),
                                      format_bytes(static_cast<double>(p.total_bytes)), p.file));
      });
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  if (options.output.json) {
    terminal.print_json(nlohmann::ordered_json{{"directory", options.destination.string()},
                                               {"preset", options.preset},
                                               {"layers", options.layers > 0 ? options.layers : config.dims.layers},
                                               {"seed", options.seed},
                                               {"bytes", written},
                                               {"seconds", seconds}});
  }
  terminal.note(fmt::format("{}: {} in {:.1f} s", options.destination.string(),
                            format_bytes(static_cast<double>(written)), seconds));
  return kExitOk;
}

}  // namespace nibble::app
