#include "model/synth.h"

#include "app/commands.h"
#include "app/loaded_model.h"
#include "app/terminal.h"
#include "base/thread_pool.h"
#include "text/tokenizer_json.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <chrono>

namespace nibble::app {

int execute(const SynthOptions& options) {
  Terminal terminal(options.output);
  const model::ModelConfig config = model::preset(options.preset);
  ThreadPool pool(thread_count({}));
  const auto start = std::chrono::steady_clock::now();
  int64_t written = 0;
  model::synth_checkpoint(
      config, options.directory,
      {.seed = options.seed,
       .layers = options.layers,
       .tokenizer_json = text::make_o200k_tokenizer_json(),
       .pool = &pool},
      [&](const model::SynthProgress& p) {
        written = p.done_bytes;
        terminal.progress("writing",
                          static_cast<double>(p.done_bytes) / static_cast<double>(std::max<int64_t>(p.total_bytes, 1)),
                          fmt::format("{} of {} ({})", format_bytes(static_cast<double>(p.done_bytes)),
                                      format_bytes(static_cast<double>(p.total_bytes)), p.file));
      });
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  if (options.output.json) {
    terminal.print_json(nlohmann::ordered_json{{"directory", options.directory.string()},
                                               {"preset", options.preset},
                                               {"layers", options.layers > 0 ? options.layers : config.dims.layers},
                                               {"seed", options.seed},
                                               {"bytes", written},
                                               {"seconds", seconds}});
  }
  terminal.note(fmt::format("{}: {} in {:.1f} s", options.directory.string(),
                            format_bytes(static_cast<double>(written)), seconds));
  return kExitOk;
}

}  // namespace nibble::app
