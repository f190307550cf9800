#include "checkpoint/checkpoint.h"

#include "checkpoint/testing/files.h"

namespace nibble::checkpoint {
namespace {

using test::expect_error;
using test::ScratchDir;

// A file of U8 [2] tensors with these names.
void write_file(const ScratchDir& dir, std::string_view file, const std::vector<std::string>& names) {
  std::vector<TensorSpec> specs;
  for (const std::string& name : names) specs.push_back({name, DType::kU8, {2}});
  write_safetensors(dir / file, {.tensors = specs}, [](const TensorPiece& piece) {
    for (std::byte& b : piece.bytes) b = static_cast<std::byte>(piece.tensor_idx);
  });
}

void write_index(const ScratchDir& dir, const std::string& weight_map) {
  dir.write("model.safetensors.index.json", R"({"metadata":{"total_size":1},"weight_map":)" + weight_map + "}");
}

void expect_corrupt(const ScratchDir& dir, std::string_view message) {
  expect_error([&] { (void)Checkpoint::open(dir.path()); }, Code::kCorrupt, message);
}

TEST(checkpoint, opens_a_single_file_by_name_or_in_its_directory) {
  const ScratchDir dir;
  write_file(dir, "model.safetensors", {"a", "b"});
  for (const auto& path : {dir.path(), dir / "model.safetensors"}) {
    const Checkpoint checkpoint = Checkpoint::open(path);
    EXPECT_EQ(checkpoint.entries().size(), 2u);
    EXPECT_EQ(checkpoint.total_bytes(), 4);
    EXPECT_EQ(checkpoint.directory(), dir.path());
    ASSERT_NE(checkpoint.find("b"), nullptr);
    EXPECT_EQ(checkpoint.find("b")->tensor.bytes[0], std::byte{1});
    EXPECT_EQ(checkpoint.find("c"), nullptr);
  }
}

TEST(checkpoint, opens_shards_through_the_index) {
  const ScratchDir dir;
  write_file(dir, "model-00000-of-00001.safetensors", {"a", "b"});
  write_file(dir, "model-00001-of-00001.safetensors", {"c"});
  write_file(dir, "unrelated.safetensors", {"a"});
  write_index(
      dir,
      R"({"a":"model-00000-of-00001.safetensors","b":"model-00000-of-00001.safetensors","c":"model-00001-of-00001.safetensors"})");
  const Checkpoint opened = Checkpoint::open(dir.path());
  EXPECT_EQ(opened.files().size(), 2u);
  EXPECT_EQ(opened.entries().size(), 3u);
  EXPECT_EQ(opened.file_of(*opened.find("c")).filename(), "model-00001-of-00001.safetensors");
  EXPECT_EQ(opened.file_of(*opened.find("a")).filename(), "model-00000-of-00001.safetensors");
}

TEST(checkpoint, stays_valid_when_moved) {
  const ScratchDir dir;
  write_file(dir, "model.safetensors", {"a", "b"});
  Checkpoint first = Checkpoint::open(dir.path());
  const Checkpoint second = std::move(first);
  EXPECT_EQ(second.find("b")->tensor.bytes[1], std::byte{1});
}

TEST(checkpoint, opens_all_files_of_the_original_layout) {
  const ScratchDir dir;
  write_file(dir, "model--00002-of-00002.safetensors", {"b"});
  write_file(dir, "model--00001-of-00002.safetensors", {"a"});
  dir.write("dtypes.json", "{}");
  const Checkpoint opened = Checkpoint::open(dir.path());
  EXPECT_EQ(opened.entries().size(), 2u);
  EXPECT_EQ(opened.entries()[0].name, "a");
}

TEST(checkpoint, does_not_look_into_original_below_a_directory) {
  const ScratchDir dir;
  std::filesystem::create_directory(dir / "original");
  write_file(dir, "original/model.safetensors", {"a"});
  expect_error([&] { (void)Checkpoint::open(dir.path()); }, Code::kIo,
               "want model.safetensors.index.json, model.safetensors or other .safetensors files, found none");
  EXPECT_EQ(Checkpoint::open(dir / "original").entries().size(), 1u);
}

TEST(checkpoint, names_what_is_not_there) {
  const ScratchDir dir;
  expect_error([&] { (void)Checkpoint::open(dir / "none"); }, Code::kIo, "/none: no such file or directory");
}

TEST(checkpoint, refuses_a_missing_shard) {
  const ScratchDir dir;
  write_index(dir, R"({"a":"x.safetensors"})");
  expect_error([&] { (void)Checkpoint::open(dir.path()); }, Code::kIo, "shard x.safetensors is not there");
}

TEST(checkpoint, refuses_an_index_that_is_not_of_its_shards) {
  const struct {
    std::vector<std::string> x, y;  // what the shards hold
    const char* weight_map;
    std::string_view says;
  } cases[] = {
      {{"a", "b"}, {}, R"({"a":"x.safetensors"})", "tensor b of x.safetensors is not in weight_map"},
      {{"a"},
       {},
       R"({"a":"x.safetensors","b":"x.safetensors"})",
       "weight_map puts tensor b into x.safetensors, which does not hold it"},
      {{"a"},
       {"b"},
       R"({"a":"y.safetensors","b":"x.safetensors"})",
       "weight_map puts tensor a into y.safetensors, but it lies in x.safetensors"},
      {{"a"}, {"a", "b"}, R"({"a":"x.safetensors","b":"y.safetensors"})", "tensor a lies in "},
      {{"a"}, {}, R"({"a":"x.safetensors","a":"x.safetensors"})", "\"a\" is named twice in one object"},
  };
  for (const auto& [x, y, weight_map, says] : cases) {
    const ScratchDir dir;
    write_file(dir, "x.safetensors", x);
    if (!y.empty()) write_file(dir, "y.safetensors", y);
    write_index(dir, weight_map);
    expect_corrupt(dir, says);
  }
}

TEST(checkpoint, refuses_shard_names_that_leave_the_directory) {
  for (const char* name : {"../x.safetensors", "/x.safetensors", "sub/x.safetensors", "..\\\\x.safetensors", "..", "",
                           "x\\u0000.safetensors", "x.bin"}) {
    const ScratchDir dir;
    write_index(dir, R"({"a":")" + std::string(name) + "\"}");
    expect_corrupt(dir, "want the name of a .safetensors file in the same directory, found \"");
  }
}

TEST(checkpoint, refuses_a_malformed_index) {
  const ScratchDir dir;
  const std::pair<const char*, const char*> cases[] = {
      {"{", "model.safetensors.index.json: want JSON, found none"},
      {"[]", "want an object, found []"},
      {"{}", "weight_map is missing"},
      {R"({"weight_map":[]})", "weight_map: want an object of tensor names, found []"},
      {R"({"weight_map":{}})", "weight_map: want an object of tensor names, found {}"},
      {R"({"weight_map":{"a":1}})", "weight_map: a: want a file name, found 1"}};
  for (const auto& [text, says] : cases) {
    dir.write("model.safetensors.index.json", text);
    expect_corrupt(dir, says);
  }
}

TEST(checkpoint, refuses_an_index_beside_a_single_file_that_it_does_not_name) {
  const ScratchDir dir;
  write_file(dir, "x.safetensors", {"a"});
  write_file(dir, "model.safetensors", {"a"});
  write_index(dir, R"({"a":"x.safetensors"})");
  expect_corrupt(dir, "does not name model.safetensors, which lies beside it");
  write_index(dir, R"({"a":"model.safetensors"})");
  EXPECT_EQ(Checkpoint::open(dir.path()).entries().size(), 1u);
}

}  // namespace
}  // namespace nibble::checkpoint
