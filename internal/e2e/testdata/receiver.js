// A webhook receiver as a subscriber would write one: it serves TLS, checks every signature with the secret it knows, and
// prints what it thinks of each request as one JSON line. PUT /secret changes the secret.
'use strict';
const crypto = require('crypto');
const fs = require('fs');
const https = require('https');

let secret = process.env.SECRET;
const tolerance = 5 * 60; // s

function genuine(headers, body) {
  const sent = Buffer.from(headers['x-ojs-signature'] || '');
  const timestamp = headers['x-ojs-timestamp'];
  if (!(Math.abs(Date.now() / 1000 - Number(timestamp)) <= tolerance)) return false;
  const mac = crypto.createHmac('sha256', secret).update(timestamp + '.').update(body).digest('hex');
  const made = Buffer.from('sha256=' + mac);
  return sent.length === made.length && crypto.timingSafeEqual(sent, made);
}

function genuineStandard(headers, body) {
  const key = Buffer.from(secret.replace(/^whsec_/, ''), 'base64');
  const signed = Buffer.concat([Buffer.from(headers['webhook-id'] + '.' + headers['webhook-timestamp'] + '.'), body]);
  const made = 'v1,' + crypto.createHmac('sha256', key).update(signed).digest('base64');
  return (headers['webhook-signature'] || '').split(' ').includes(made);
}

const server = https.createServer({ key: fs.readFileSync(process.env.KEY), cert: fs.readFileSync(process.env.CERT) }, (req, res) => {
  const chunks = [];
  req.on('data', (chunk) => chunks.push(chunk));
  req.on('end', () => {
    const body = Buffer.concat(chunks);
    if (req.method === 'PUT') {
      secret = body.toString();
      res.end();
      return;
    }
    const ok = genuine(req.headers, body);
    res.statusCode = ok ? 204 : 401;
    res.end();
    console.log(JSON.stringify({
      ok, standard: genuineStandard(req.headers, body), type: ok ? JSON.parse(body).type : null,
      attempt: Number(req.headers['x-ojs-attempt']), delivery: req.headers['x-ojs-delivery-id'],
    }));
  });
});
server.listen(0, '127.0.0.1', () => console.log(JSON.stringify({ port: server.address().port })));
process.stdin.resume().on('end', () => process.exit(0)); // ends with the test, however that ends
