#include "app/setup/commands.h"
#include "app/setup/gguf_model.h"
#include "app/setup/loaded_model.h"
#include "app/setup/named_model.h"
#include "app/setup/terminal.h"
#include "base/error.h"
#include "base/thread_pool.h"
#include "convert/gguf.h"
#include "text/tokenizer_parts.h"

#include <filesystem>
#include <map>
#include <tuple>

namespace nibble::app {
namespace {

namespace fs = std::filesystem;

text::TokenizerParts tokenizer_parts(const ModelOptions& options) {
  const fs::path path = options.model;
  const fs::path file = (fs::is_directory(path) ? path : path.parent_path()) / "tokenizer.json";
  if (!fs::exists(file)) return text::read_tokenizer_json(text::make_o200k_tokenizer_json(), "o200k_harmony");
  return text::read_tokenizer_json(read_text(file), file.string());
}

}  // namespace

int execute(const ConvertOptions& asked) {
  ConvertOptions options = asked;
  Terminal terminal(options.output);
  options.model = with_files(asked.model, terminal);
  if (is_gguf(options.model)) {
    throw Error(Code::kInvalidRequest, "{}: want a model in safetensors, found GGUF", options.model.model);
  }
  const ModelSource source = open_model(options.model, terminal);
  std::map<std::tuple<model::WeightRole, int>, const backend::HostWeight*> weights;
  for (const backend::HostWeight& weight : source.weights) weights[{weight.role, weight.layer}] = &weight;
  const convert::TensorSource bytes_of = [&](const model::ManifestItem& item) {
    const backend::HostWeight& weight = *weights.at({item.role, item.layer});
    return item.part == model::Part::kValues ? weight.values.bytes : weight.scales.bytes;
  };
  ThreadPool pool(thread_count(options.model));
  write_gguf_model(source.config, tokenizer_parts(options.model), bytes_of,
                   {.destination = options.destination,
                    .dense = options.dense,
                    .part_bytes = options.part_bytes,
                    .pool = &pool,
                    .json = options.output.json},
                   terminal);
  return kExitOk;
}

}  // namespace nibble::app
