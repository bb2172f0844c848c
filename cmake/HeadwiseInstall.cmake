# `cmake --install`, then find_package(headwise COMPONENTS core) elsewhere: target headwise::core, headers <headwise/...>.
# Without COMPONENTS everything that is installed is found, headwise::headwise links it. Each library is an install
# component of its name, so that `cmake --install BUILD --component core` needs nothing else built.
include(CMakePackageConfigHelpers)
set(config_folder ${CMAKE_INSTALL_LIBDIR}/cmake/headwise)

function(headwise_install component)
  install(TARGETS ${ARGN} EXPORT headwise_${component}_targets
          ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT ${component})
  install(EXPORT headwise_${component}_targets NAMESPACE headwise:: DESTINATION ${config_folder} COMPONENT ${component})
endfunction()

headwise_install(core headwise_core)
if(NOT HEADWISE_CORE_ONLY)
  headwise_install(server headwise_server)
  headwise_install(bench headwise_bench)
  headwise_install(planner headwise_planner)
  headwise_install(evaluation headwise_evaluation)
  headwise_install(loadgen headwise_loadgen headwise)
endif()

install(DIRECTORY ${PROJECT_SOURCE_DIR}/include/headwise DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} COMPONENT core)
configure_package_config_file(${PROJECT_SOURCE_DIR}/cmake/headwiseConfig.cmake.in
  ${PROJECT_BINARY_DIR}/headwiseConfig.cmake INSTALL_DESTINATION ${config_folder})
write_basic_package_version_file(${PROJECT_BINARY_DIR}/headwiseConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/headwiseConfig.cmake ${PROJECT_BINARY_DIR}/headwiseConfigVersion.cmake
        DESTINATION ${config_folder} COMPONENT core)

if(HEADWISE_BUILD_APPS)
  install(TARGETS headwise_core_cli RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR} COMPONENT core_command)
  if(NOT HEADWISE_CORE_ONLY)
    install(TARGETS headwise_cli RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR} COMPONENT command)
  endif()
endif()
