# Tests that are not programs of ours.

include(GoogleTest)

# All programs whose tests have the label tsan: what a build for the thread sanitizer needs.
add_custom_target(lockstep_tsan_tests)

# Randomised addresses of recent kernels collide with the thread sanitizer's shadow memory.
if(LOCKSTEP_SANITIZE MATCHES "thread")
  execute_process(COMMAND setarch -R true RESULT_VARIABLE failed OUTPUT_QUIET ERROR_QUIET)
  if(NOT failed)
    set(LOCKSTEP_TEST_LAUNCHER setarch -R)
  endif()
endif()

find_package(Python3 COMPONENTS Interpreter REQUIRED)
foreach(check include_check include_check_self_test)
  set(options "")
  if(check MATCHES "self_test")
    set(options --self-test)
  endif()
  add_test(NAME ${check} COMMAND Python3::Interpreter
                                 "${PROJECT_SOURCE_DIR}/scripts/check_includes.py" ${options})
  set_tests_properties(${check} PROPERTIES TIMEOUT 120)
endforeach()

add_test(NAME libtorch_test COMMAND Python3::Interpreter
                                    "${PROJECT_SOURCE_DIR}/scripts/libtorch_test.py")
set_tests_properties(libtorch_test PROPERTIES TIMEOUT 120 ENVIRONMENT
                                              "LOCKSTEP_CMAKE=${CMAKE_COMMAND}")
