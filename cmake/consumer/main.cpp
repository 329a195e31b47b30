// Runs a saved model without Python.
//
//   run_model MODEL INPUTS [OUTPUTS]
//
//   MODEL    model.pt (TorchScript) or model.pt2 (AOTInductor package)
//   INPUTS   tensors, written in Python by torch.save([a, b], "inputs.pt")
//   OUTPUTS  file for the outputs, a tuple of tensors for torch.load; without it they are printed
//
// Nothing here names pairloom: linking pairloom::torch loads the operators before main begins.
#include <ATen/core/Formatting.h>
#include <c10/core/InferenceMode.h>
#include <torch/csrc/inductor/aoti_package/model_package_loader.h>
#include <torch/csrc/jit/serialization/import.h>
#include <torch/csrc/jit/serialization/pickle.h>

#include <exception>
#include <fstream>
#include <functional>
#include <iostream>
#include <iterator>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

namespace {

using Tensors = std::vector<at::Tensor>;
using Model = std::function<Tensors(const Tensors&)>;

std::vector<char> read_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) throw std::runtime_error("cannot read " + path);
  return {std::istreambuf_iterator<char>(file), {}};
}

void write_file(const std::string& path, const std::vector<char>& bytes) {
  std::ofstream file(path, std::ios::binary);
  file.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  if (!file.flush()) throw std::runtime_error("cannot write " + path);
}

// The tensors of a tensor, a list or a tuple, nested or not.
void append_tensors(const c10::IValue& value, Tensors& tensors) {
  if (value.isTensor()) {
    tensors.push_back(value.toTensor());
  } else if (value.isTensorList()) {
    for (const at::Tensor& tensor : value.toTensorVector()) tensors.push_back(tensor);
  } else if (value.isTuple()) {
    for (const c10::IValue& element : value.toTupleRef().elements()) append_tensors(element, tensors);
  } else if (value.isList()) {
    for (const c10::IValue& element : value.toListRef()) append_tensors(element, tensors);
  } else {
    throw std::runtime_error("expected tensors, got " + value.tagKind());
  }
}

Model load(const std::string& path) {
  if (path.ends_with(".pt2")) {
    auto package = std::make_shared<torch::inductor::AOTIModelPackageLoader>(path);
    return [package](const Tensors& inputs) { return package->run(inputs); };
  }
  return [module = torch::jit::load(path)](const Tensors& inputs) mutable {
    Tensors outputs;
    append_tensors(module.forward({inputs.begin(), inputs.end()}), outputs);
    return outputs;
  };
}

}  // namespace

int main(int count, char** arguments) {
  if (count != 3 && count != 4) {
    std::cerr << "usage: run_model MODEL INPUTS [OUTPUTS]\n";
    return 2;
  }
  try {
    const c10::InferenceMode no_gradients;
    const Model model = load(arguments[1]);
    Tensors inputs;
    append_tensors(torch::jit::pickle_load(read_file(arguments[2])), inputs);
    const Tensors outputs = model(inputs);
    if (count == 4) {
      // A tuple: torch.load would not take a list that C++ wrote for plain data.
      const std::vector<c10::IValue> elements(outputs.begin(), outputs.end());
      write_file(arguments[3], torch::jit::pickle_save(c10::ivalue::Tuple::create(elements)));
    } else {
      for (const at::Tensor& output : outputs) std::cout << output << '\n';
    }
  } catch (const c10::Error& error) {
    std::cerr << "run_model: " << error.what_without_backtrace() << '\n';
    return 1;
  } catch (const std::exception& error) {
    std::cerr << "run_model: " << error.what() << '\n';
    return 1;
  }
}
