#include "convert/quantize.h"

#include "app/setup/commands.h"
#include "app/setup/interrupt.h"
#include "app/setup/named_model.h"
#include "app/setup/loaded_model.h"
#include "app/setup/terminal.h"
#include "base/error.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <filesystem>

namespace nibble::app {
namespace {

MxFormat format_of(const std::string& name) {
  if (name == "mxfp8_e4m3") return MxFormat::kMxfp8E4m3;
  if (name == "mxfp8_e5m2") return MxFormat::kMxfp8E5m2;
  if (name == "mxfp6_e2m3") return MxFormat::kMxfp6E2m3;
  if (name == "mxfp6_e3m2") return MxFormat::kMxfp6E3m2;
  return MxFormat::kMxfp4;
}

}  // namespace

int execute(const QuantizeOptions& asked) {
  QuantizeOptions options = asked;
  Terminal terminal(options.output);
  options.input = path_of(asked.input, asked.hub);
  ThreadPool pool(thread_count({}));
  const convert::QuantizeOptions how{
      .format = format_of(options.format), .scale = options.scale, .name_glob = options.tensors, .pool = &pool};
  const bool directory = std::filesystem::is_directory(options.input);
  if (directory && !options.tensors.empty()) {
    throw Error(Code::kInvalidRequest,
                "--tensors: want a file as input, found the directory {}; its experts are what is quantised",
                options.input.string());
  }
  nlohmann::ordered_json json = {{"format", options.format}, {"tensors", nlohmann::json::array()}};
  const Interrupt interrupt(kEndings);
  const auto on_tensor = [&](const convert::QuantizedTensor& t) {
    interrupt.throw_if_requested();
    json["tensors"].push_back({{"name", t.name},
                               {"shape", t.shape},
                               {"bytes_before", t.bytes_before},
                               {"bytes_after", t.bytes_after},
                               {"relative_rms_error", t.error.relative_rms()},
                               {"max_abs_error", t.error.max_abs},
                               {"clipped", t.error.clipped},
                               {"nan_blocks", t.error.nan_blocks}});
    if (options.output.json) return;
    terminal.print(fmt::format("{}  [{}]  {} → {}  rms error {:.4f}  largest {:.4g}  clipped {}{}\n", t.name,
                               fmt::join(t.shape, ","), format_bytes(static_cast<double>(t.bytes_before)),
                               format_bytes(static_cast<double>(t.bytes_after)), t.error.relative_rms(),
                               t.error.max_abs, t.error.clipped,
                               t.error.nan_blocks > 0 ? fmt::format("  NaN blocks {}", t.error.nan_blocks) : ""));
  };
  const auto convert = directory ? convert::quantize_checkpoint : convert::quantize_file;
  convert(options.input, options.destination, how, on_tensor);
  if (options.output.json) terminal.print_json(json);
  return kExitOk;
}

}  // namespace nibble::app
