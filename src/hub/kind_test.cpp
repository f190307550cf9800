#include "hub/kind.h"

#include "checkpoint/gguf_start.h"
#include "hub/testing/scratch_cache.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace nibble::hub {
namespace {

using testing::HasSubstr;

std::string said(const Marks& marks) {
  const auto other = other_kind("me/it", marks);
  return other ? other->error.what() : "";
}

const std::vector<std::string> kModel = {"config.json", "model.safetensors", "tokenizer.json"};

TEST(other_kind, is_not_gpt_oss_itself) {
  for (const char* config :
       {R"({"model_type": "gpt_oss"})", R"({"model_type": "gpt_oss_puzzle"})", R"({"num_experts": 32})", "", "[]", "{",
        R"({"model_type": "gpt_oss", "quantization_config": {"quant_method": "mxfp4"}})"})
    EXPECT_EQ(said({.files = kModel, .config = config}), "") << config;
  EXPECT_EQ(said({.files = {"x.gguf", "model.onnx"}, .architecture = "gpt-oss"}), "");
  EXPECT_EQ(said({.files = {"adapter_config.json", "adapter_model.safetensors", "model.safetensors"}}), "");
  EXPECT_EQ(said({.files = {"config.json"}, .config = "{}"}), "");  // not yet whole
  EXPECT_EQ(said({.files = kModel, .tensors = {"model.layers.0.mlp.experts.gate_up_proj", "x.experts.down_proj_bias"}}),
            "");
}

TEST(other_kind, of_another_family_is_told_by_config_or_gguf) {
  EXPECT_EQ(said({.files = kModel, .config = R"({"model_type": "llama"})"}),
            "only gpt-oss models run here: me/it is a llama");
  EXPECT_EQ(said({.files = {"x.gguf"}, .architecture = "exaone"}), "only gpt-oss models run here: me/it is an exaone");
  EXPECT_TRUE(other_kind("x", {.architecture = "qwen3moe"})->is_family);
  EXPECT_THAT(said({.files = {"model_index.json", "unet/model.safetensors"}}), HasSubstr("a pipeline of diffusers"));
}

TEST(other_kind, is_known_by_its_marks) {
  const auto config = [](const char* text) { return Marks{.files = kModel, .config = text}; };
  const auto files = [](std::vector<std::string> names) { return Marks{.files = std::move(names)}; };
  const auto tensors = [](const char* name) { return Marks{.files = kModel, .config = "{}", .tensors = {name}}; };
  const std::pair<Marks, const char*> kinds[] = {
      {files({}), "empty: want config.json"},
      {files({"README.md"}), "no model is in it"},
      {files({"tokenizer.json", "tokenizer_config.json"}), "only a tokenizer"},
      {files({"adapter_config.json", "adapter_model.safetensors", "tokenizer.json"}),
       "a LoRA adapter, not a model: merge it"},
      {files({"weights.npz", "config.json"}), "an MLX model"},
      {files({"onnx/model.onnx", "config.json"}), "an ONNX model"},
      {files({"openvino_model.xml", "openvino_model.bin", "config.json"}), "an OpenVINO model"},
      {files({"pytorch_model.bin", "config.json"}), "PyTorch's pickles"},
      {files({"model.pth"}), "PyTorch's pickles"},
      {config(R"({"model_type": "gpt_oss", "quantization": {"group_size": 32, "bits": 4}})"), "an MLX model"},
      {config(R"({"model_type": "gpt_oss", "quantization_config": {"quant_method": "gptq"}})"), "quantised by gptq"},
      {config(R"({"model_type": "gpt_oss", "quantization_config": {"quant_method": "bitsandbytes"}})"),
       "quantised by bitsandbytes"},
      {config(R"({"model_type": "gpt_oss", "quantization_config": {"quant_method": "compressed-tensors"}})"),
       "quantised by compressed-tensors"},
      {tensors("model.layers.0.mlp.experts.0.gate_proj.weight"), "a tensor for each expert"},
      {tensors("model.layers.0.mlp.experts.gate_up_projs.31.weight"), "a tensor for each expert"},
  };
  for (const auto& [marks, words] : kinds) {
    EXPECT_THAT(said(marks), HasSubstr(words));
    EXPECT_FALSE(other_kind("x", marks)->is_family);
  }
}

TEST(other_kind, of_a_file_is_its_format_alone) {
  const TestCache cache;
  put(cache.path() / "model.onnx", "x");
  put(cache.path() / "note", "hello");
  EXPECT_THAT(said(marks_of(cache.path() / "model.onnx")), HasSubstr("ONNX"));
  EXPECT_EQ(said(marks_of(cache.path() / "note")), "");
  EXPECT_THAT(said(marks_of(cache.path() / "none")), "");
  put(cache.path() / "m/model.safetensors.index.json", R"({"weight_map": {"a.experts.3.up_proj": "x.safetensors"}})");
  put(cache.path() / "m/x.safetensors", "");
  EXPECT_THAT(said(marks_of(cache.path() / "m")), HasSubstr("a tensor for each expert"));
}

}  // namespace
}  // namespace nibble::hub
