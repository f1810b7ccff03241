// The extension module aleator._native: runs every ALEATOR_BIND of the other files, in order of
// name.
#include "bind.hpp"
#include "errors.hpp"
#include "simd/dispatch.hpp"

// Exceptions of errors.hpp become those of the same names in aleator.core.errors.
static void translate(const std::exception_ptr& p, void*) {
  const auto raise = [](const char* name, const auto&... arguments) {
    const nb::object type = nb::module_::import_("aleator.core.errors").attr(name);
    PyErr_SetObject(type.ptr(), type(arguments...).ptr());
  };
  try {
    std::rethrow_exception(p);
  } catch (const aleator::LogitsError& e) {
    raise("LogitsError", e.what());
  } catch (const aleator::StateError& e) {
    raise("StateError", e.what());
  } catch (const aleator::ParameterError& e) {
    raise("ParameterError", e.parameter, e.what());
  } catch (const aleator::ConstraintError& e) {
    raise("ConstraintError", e.token, e.what());
  } catch (const aleator::GrammarError& e) {
    raise("GrammarError", e.what(), e.line, e.column);
  }
}

NB_MODULE(_native, m) {
  if (!aleator::isa_compiled())
    throw nb::import_error(
        "aleator's native module was compiled for another processor: run pip install -e . here");
  m.doc() =
      "Native code of aleator: samplers, cache bookkeeping, layers. Import it through the package.";
  // Objects that live in a module's globals are still there at exit, which is not worth a warning
  // to users.
  nb::set_leak_warnings(false);
  nb::register_exception_translator(translate);
  for (const auto& [name, bind] : aleator::bindings) bind(m);
  m.def(
      "isa", [] { return aleator::isa_name(aleator::isa()); },
      "Instruction set in use: 'base'; 'v3' (AVX2) or 'v4' (AVX-512) on x86-64; 'dotprod' on "
      "aarch64. The environment variable ALEATOR_ISA forces a lower one.");
}
