// SPDX-License-Identifier: MIT
// A statsd backend (the plug-in interface of statsd 0.9.0) that appends each flush to a file, a JSON object a line.
'use strict';
const fs = require('fs');

exports.init = function (startup_time, config, events) {
  events.on('flush', function (timestamp, metrics) {
    const sets = {};
    for (const key in metrics.sets) {
      sets[key] = metrics.sets[key].values();
    }
    const { counters, timers, gauges } = metrics;
    fs.appendFileSync(config.flushFile, JSON.stringify({ timestamp, counters, timers, gauges, sets }) + '\n');
  });
  return true;
};
