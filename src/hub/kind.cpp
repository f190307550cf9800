#include "hub/kind.h"

#include "base/read_json.h"
#include "checkpoint/gguf_start.h"
#include "checkpoint/strict_json.h"
#include "hub/cache.h"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <cctype>
#include <span>
#include <string_view>
#include <utility>

namespace nibble::hub {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

constexpr const char* kInstead = "take the model that it was made from, or its GGUF";

// Files of weights in formats that are not read here.
struct OtherFormat {
  std::string_view ending, what;
};
constexpr OtherFormat kOtherFormats[] = {
    {"weights.npz", "an MLX model"},
    {".onnx", "an ONNX model"},
    {"openvino_model.xml", "an OpenVINO model"},
    {"openvino_model.bin", "an OpenVINO model"},
    {".bin", "PyTorch's pickles"},
    {".pt", "PyTorch's pickles"},
    {".pth", "PyTorch's pickles"},
    {".ckpt", "PyTorch's pickles"},
    {".pkl", "Python's pickles"},
    {".h5", "a TensorFlow model"},
    {".msgpack", "a Flax model"},
    {".mlpackage/Manifest.json", "a Core ML model"},
    {".tflite", "a TensorFlow Lite model"},
    {".engine", "a TensorRT engine"},
};

std::string_view name_in(std::string_view path) { return path.substr(path.rfind('/') + 1); }

// model.layers.0.mlp.experts.17.gate_proj.weight, …experts.gate_up_projs.17.weight: one tensor for each expert.
bool is_split_expert(std::string_view tensor) {
  for (const std::string_view before : {".experts.", ".gate_up_projs.", ".down_projs."}) {
    const size_t at = tensor.find(before);
    if (at == tensor.npos || at + before.size() == tensor.size()) continue;
    if (std::isdigit(static_cast<unsigned char>(tensor[at + before.size()])) != 0) return true;
  }
  return false;
}

std::string of_family(const std::string& name, const std::string& family) {
  const bool vowel = std::string_view("aeiou").find(family.front()) != std::string_view::npos;
  return fmt::format("only gpt-oss models run here: {} is {} {}", name, vowel ? "an" : "a",
                     checkpoint::printable(family));
}

// What config.json says; empty: nothing that speaks against it.
std::string of_config(const std::string& name, const Json& config) {
  if (config.is_object() && config.contains("quantization") && config["quantization"].is_object() &&
      config["quantization"].contains("bits"))
    return fmt::format("{}: an MLX model (config.json: quantization), which is not read here: {}", name, kInstead);
  const std::string method = config.is_object() && config.contains("quantization_config")
                                 ? text_at(config["quantization_config"], "quant_method")
                                 : "";
  if (method.empty() || method == "mxfp4") return {};
  return fmt::format("{}: its weights are quantised by {} (config.json: quant_method), which is not read here: {}",
                     name, checkpoint::printable(method), kInstead);
}

std::string of_files(const std::string& name, const Marks& marks) {
  const auto has = [&marks](const auto& is) { return std::ranges::any_of(marks.files, is); };
  const auto named = [&](std::string_view file) {
    return has([file](const std::string& path) { return path == file; });
  };
  const bool has_weights = has([](const std::string& path) {
    return path.ends_with(".gguf") || (path.ends_with(".safetensors") && !name_in(path).starts_with("adapter_"));
  });
  if (named("model_index.json"))
    return fmt::format("only gpt-oss models run here: {} is a pipeline of diffusers", name);
  if (has_weights) return {};
  if (named("adapter_config.json"))
    return fmt::format(
        "{}: a LoRA adapter, not a model: merge it into its base model (peft: merge_and_unload, then "
        "save_pretrained) and take the result",
        name);
  for (const OtherFormat& other : kOtherFormats) {
    if (!has([&other](const std::string& path) { return path.ends_with(other.ending); })) continue;
    return fmt::format("{}: {} (*{}), which is not read here: want .safetensors (save_pretrained writes them) or .gguf",
                       name, other.what, other.ending);
  }
  if (!marks.config.empty() || named("config.json")) return {};  // not yet whole
  const bool has_tokenizer = named("tokenizer.json") || named("tokenizer_config.json");
  if (marks.is_file && !has_tokenizer) return {};
  return fmt::format("{}: {}: want config.json and .safetensors beside it, or a .gguf file", name,
                     has_tokenizer         ? "only a tokenizer"
                     : marks.files.empty() ? "empty"
                                           : "no model is in it");
}

}  // namespace

std::optional<OtherKind> other_kind(const std::string& name, const Marks& marks) {
  const auto unsupported = [](const std::string& what, bool is_family = false) {
    return OtherKind{is_family, Error(Code::kUnsupported, what)};
  };
  const Json config = read_json(marks.config);
  if (const std::string type = text_at(config, "model_type"); !type.empty() && !type.starts_with("gpt_oss"))
    return unsupported(of_family(name, type), true);
  if (marks.architecture == "gptoss")
    return unsupported(
        fmt::format("{}: gpt-oss in Ollama's own layout, which is not read here: nibble pull gpt-oss-20b "
                    "or gpt-oss-120b gets the same model",
                    name));
  if (!marks.architecture.empty() && !marks.architecture.starts_with("gpt-oss"))
    return unsupported(of_family(name, marks.architecture), true);
  if (const std::string what = of_config(name, config); !what.empty()) return unsupported(what);
  if (std::ranges::any_of(marks.tensors, is_split_expert))
    return unsupported(
        fmt::format("{}: it has a tensor for each expert (…experts.0.…), which is not read here: {}", name, kInstead));
  const std::string what = of_files(name, marks);
  if (what.empty()) return std::nullopt;
  const bool is_empty = what.ends_with("a .gguf file");
  return OtherKind{false, Error(is_empty ? Code::kIo : Code::kUnsupported, what)};
}

std::vector<std::string> tensors_of_index(const std::string& text) {
  std::vector<std::string> names;
  const Json index = read_json(text);
  if (index.is_object() && index.contains("weight_map") && index["weight_map"].is_object())
    for (const auto& [tensor, file] : index["weight_map"].items()) names.push_back(tensor);
  return names;
}

Marks marks_of(const fs::path& path) {
  std::error_code ignored;
  if (!fs::is_directory(path, ignored)) {
    const std::string start = start_of(path, checkpoint::kGgufStartBytes);
    return {.files = {path.filename().string()},
            .architecture = checkpoint::gguf_architecture(std::as_bytes(std::span(start))).value_or(""),
            .is_file = true};
  }
  Marks marks{.config = start_of(path / "config.json", size_t{1} << 20),
              .tensors = tensors_of_index(start_of(path / "model.safetensors.index.json", size_t{64} << 20))};
  for (const fs::path& file : files_below(path, 2))
    marks.files.push_back(file.lexically_relative(path).generic_string());
  return marks;
}

}  // namespace nibble::hub
