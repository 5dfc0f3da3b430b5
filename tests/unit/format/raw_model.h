// Model files put together byte by byte for tests, independent of the writer and of the reader.

#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace mk::test {

struct RawTensor {
  std::string name;
  uint8_t dtype = 0;
  std::vector<uint32_t> dims;
  std::string data;
  std::optional<uint64_t> offset;  // what the directory says when not where the data is
  std::optional<uint64_t> size;
  std::optional<uint16_t> name_bytes;
  std::optional<uint8_t> n_dims;
  std::optional<uint64_t> alignment;  // 64 when not given
};

struct RawModel {
  std::string magic = "MKIM0002";
  std::string config;
  std::optional<uint32_t> config_bytes;
  std::optional<uint32_t> count;
  std::vector<RawTensor> tensors;

  RawTensor& Find(const std::string& name);
  void Erase(const std::string& name);
  // Replaces `from` in the config by `to`; the test fails when it is not there.
  void Config(const std::string& from, const std::string& to);
  std::string Assemble() const;
};

std::string F32Bytes(const std::vector<float>& values);

// A complete K3 model of four layers: 0 dense KDA, 1 MoE KDA, 2 MoE MLA, 3 dense MLA, two experts,
// one of them MXFP4 and one VQ1 in layer 1, F32 and MXFP4SQ in layer 2.
RawModel SmallK3();

// A directory of its own, removed at the end.
class TempDirectory {
 public:
  TempDirectory();
  ~TempDirectory();
  TempDirectory(const TempDirectory&) = delete;
  TempDirectory& operator=(const TempDirectory&) = delete;
  std::string Path(const std::string& name) const { return path_ + "/" + name; }
  // Writes a file and returns its path.
  std::string Write(const std::string& name, const std::string& content) const;

 private:
  std::string path_;
};

}  // namespace mk::test
