// SPDX-License-Identifier: MIT
// Sends metrics with hot-shots: node client.js PROTOCOL PORT_OR_PATH COUNT; prints how many of each kind it sent.
'use strict';
const StatsD = require(process.argv[2]);
const [protocol, where, count] = [process.argv[3], process.argv[4], Number(process.argv[5])];

const client = new StatsD({
  protocol,
  ...(protocol === 'stream' ? { stream: require('net').connect(where) } : { host: '127.0.0.1', port: Number(where) }),
  prefix: 'hot.',
  maxBufferSize: 1000,
  bufferFlushInterval: 20,
  errorHandler: (error) => { console.error(error); process.exitCode = 1; },
});

for (let i = 0; i < count; i++) {
  client.increment('requests');
  client.increment('bytes', i);
  client.timing('latency', i % 500);
  client.gauge('depth', i);
  client.set('users', `user${i % 100}`);
  client.histogram('size', i, ['env:test', 'host:a']);
  client.distribution('dist', i + 0.5);
  client.increment('sampled', 1, 1.0);
}
client.close((error) => {
  if (error) {
    console.error(error);
    process.exitCode = 1;
  }
  console.log(JSON.stringify({ lines: count * 8 }));
});
