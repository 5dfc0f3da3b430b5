// A second, trusting reader of MKIM0002 files for the references in this folder. It shares no code
// with the engine's reader, so that a mistake there cannot hide here. Only for files that tests
// made.

#pragma once

#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace mk::reference {

struct Tensor {
  int dtype = 0;               // 0 F32, 1 MXFP4, 2 I32, 3 VQ1, 4 MXFP4SQ, 16 BF16
  std::vector<uint32_t> dims;  // outermost first
  std::vector<uint8_t> bytes;  // the blob as it stands in the file
};

struct ParsedModel {
  nlohmann::json config;
  std::map<std::string, Tensor> tensors;
};

// Throws std::runtime_error when the file cannot be read as MKIM0002.
ParsedModel ParseMkim(const std::string& path);

// Values of a tensor in f64, row-major. `codebook` is needed for VQ1 only ([256][16]).
std::vector<double> Decode(const Tensor& tensor, const std::vector<double>& codebook);

}  // namespace mk::reference
