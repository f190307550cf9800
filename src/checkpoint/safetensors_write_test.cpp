#include "base/error.h"
#include "base/mmap_file.h"
#include "checkpoint/safetensors.h"
#include "checkpoint/testing.h"

#include <csignal>
#include <stdexcept>

#include <sys/resource.h>

namespace nibble::checkpoint {
namespace {

using test::expect_error;
using test::ScratchDir;

// Byte i of tensor t.
std::byte pattern(size_t tensor_idx, int64_t i) {
  return static_cast<std::byte>(31 * tensor_idx + static_cast<size_t>(i));
}

void fill_pattern(const TensorPiece& piece) {
  for (size_t i = 0; i < piece.bytes.size(); ++i) {
    piece.bytes[i] = pattern(piece.tensor_idx, piece.offset_bytes + static_cast<int64_t>(i));
  }
}

const std::vector<TensorSpec> kSpecs = {{"odd", DType::kU8, {3}},
                                        {"dense", DType::kBf16, {2, 5}},
                                        {"empty", DType::kF32, {0, 7}},
                                        {"wide", DType::kF32, {3}}};

TEST(write_safetensors, reads_back_for_any_piece_size) {
  const ScratchDir dir;
  std::string first;
  for (const int64_t piece_bytes : {int64_t{1}, int64_t{4}, int64_t{7}, std::numeric_limits<int64_t>::max()}) {
    write_safetensors(dir / "f.safetensors", {.tensors = kSpecs, .metadata = {{"k", "v"}}, .piece_bytes = piece_bytes},
                      fill_pattern);
    const SafetensorsFile file(dir / "f.safetensors");
    ASSERT_EQ(file.entries().size(), kSpecs.size());
    EXPECT_EQ(file.metadata(), (Metadata{{"k", "v"}}));
    for (const TensorEntry& entry : file.entries()) {
      size_t idx = 0;
      while (kSpecs[idx].name != entry.name) ++idx;
      EXPECT_EQ(entry.tensor.dtype, kSpecs[idx].dtype);
      EXPECT_EQ(entry.tensor.shape, kSpecs[idx].shape);
      for (size_t i = 0; i < entry.tensor.bytes.size(); ++i) {
        EXPECT_EQ(entry.tensor.bytes[i], pattern(idx, static_cast<int64_t>(i))) << entry.name << " " << i;
      }
    }
    const std::string bytes = read_text_file(dir / "f.safetensors", 1 << 20);
    if (first.empty()) first = bytes;
    EXPECT_EQ(bytes, first);
  }
  EXPECT_FALSE(std::filesystem::exists(dir / "f.safetensors.part"));
}

TEST(write_safetensors, writes_a_file_without_tensors) {
  const ScratchDir dir;
  write_safetensors(dir / "f.safetensors", {}, fill_pattern);
  EXPECT_TRUE(SafetensorsFile(dir / "f.safetensors").entries().empty());
}

TEST(write_safetensors, leaves_the_old_file_and_no_part_when_fill_throws) {
  const ScratchDir dir;
  dir.write("f.safetensors", "old");
  EXPECT_THROW(write_safetensors(dir / "f.safetensors", {.tensors = kSpecs},
                                 [](const TensorPiece&) { throw std::runtime_error("no"); }),
               std::runtime_error);
  EXPECT_EQ(read_text_file(dir / "f.safetensors", 100), "old");
  EXPECT_FALSE(std::filesystem::exists(dir / "f.safetensors.part"));
}

TEST(write_safetensors, names_the_file_it_cannot_create) {
  const ScratchDir dir;
  expect_error([&] { write_safetensors(dir / "none/f.safetensors", {}, fill_pattern); }, Code::kIo,
               "/none/f.safetensors.part: cannot create: No such file or directory");
}

TEST(write_safetensors, reports_a_full_disk) {
  const ScratchDir dir;
  // A limit on the file size stands in for a full disk: the system refuses the write in the same way.
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  rlimit small = before;
  small.rlim_cur = 4096;
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
  const std::vector<TensorSpec> specs = {{"t", DType::kU8, {100000}}};
  expect_error([&] { write_safetensors(dir / "f.safetensors", {.tensors = specs}, fill_pattern); }, Code::kIo,
               "f.safetensors.part: cannot write: File too large");
  setrlimit(RLIMIT_FSIZE, &before);
  std::signal(SIGXFSZ, handler);
  EXPECT_TRUE(std::filesystem::is_empty(dir.path()));
}

TEST(write_safetensors, refuses_a_name_given_twice_and_impossible_shapes) {
  const ScratchDir dir;
  const auto write = [&](std::vector<TensorSpec> specs) {
    write_safetensors(dir / "f.safetensors", {.tensors = specs}, fill_pattern);
  };
  expect_error([&] { write({{"t", DType::kU8, {1}}, {"t", DType::kU8, {1}}}); }, Code::kInvalidRequest,
               "tensor name t is reserved or given twice");
  expect_error([&] { write({{"__metadata__", DType::kU8, {1}}}); }, Code::kInvalidRequest, "__metadata__ is reserved");
  expect_error([&] { write({{"t", DType::kU8, {-1}}}); }, Code::kInvalidRequest, "negative dimension in U8 [-1]");
}

}  // namespace
}  // namespace nibble::checkpoint
